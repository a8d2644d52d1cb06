"""What the generator's tests share: tiny random models made by the reference library, and the embedded model's tokenizer."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from shared.text.tokenizer import Tokenizer

TINY = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # so that the two best logits are apart
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save_tiny_llama(folder: Path, **changes) -> Path:
    """A random Llama with a byte tokenizer, in the layout of a Hugging Face folder."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY, **changes}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # made as zeros, which would hide a forgotten bias
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


def save_byte_tokenizer(folder: Path) -> None:
    """One token per byte, then <s>, </s> and <pad>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    fast.add_special_tokens(["<s>", "</s>", "<pad>"])
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    """Folder of the plain tiny model."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def long_llama(tmp_path_factory) -> Path:
    """The same with a context of 8192 tokens and no end token, for requests that take a while."""
    return save_tiny_llama(tmp_path_factory.mktemp("long-llama"), max_position_embeddings=8192, eos_token_id=None)


@pytest.fixture(scope="session")
def smollm_tokenizer(models_dir) -> Tokenizer:
    """The embedded model's tokenizer."""
    return Tokenizer(models_dir / "smollm2-135m-instruct")
