"""Cross-encoders and classifiers of every family against transformers, and a judge against its own recipe, on tiny random weights.

The pairs are made from text on both sides, so the tokenizer's convention for pairs and the types of tokens are checked with it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from shared.modeling.sequence_classifier import LoadedClassifier, load_sequence_classifier
from shared.modeling.yes_no_scorer import load_yes_no_scorer
from shared.settings.base import settings_config
from shared.settings.encoder import EncoderSettings
from shared.settings.errors import ModelFolderError
from shared.text.judge_preparer import JudgePreparer
from shared.text.pair_preparer import FramedPairPreparer, PairRules
from tests.shared.modeling.tiny_bert import save_tokenizer, set_json
from tests.shared.modeling.tiny_encoders import CASES, save_classifier, save_tiny_encoder

QUERY = "w50 w51"
DOCUMENTS = ["w60 w61 w62 w63", "w70", "w50 w51", "w80 w81 w82 w83 w84 w85 w86"]
RULES = PairRules("query", "documents")


class Settings(EncoderSettings):
    model_config = settings_config("test")
    port: int = 0


def scores(loaded: LoadedClassifier, documents: list[str]) -> torch.Tensor:
    frame = loaded.setup.tokenizer.pair_frame()
    assert frame is not None
    preparer = FramedPairPreparer(loaded.setup.tokenizer, loaded.setup.max_tokens, frame)
    return torch.from_numpy(loaded.scorer.launch(preparer.from_pairs([QUERY], documents, RULES).sequences).wait())


@torch.inference_mode()
def reference(folder: Path, documents: list[str]) -> torch.Tensor:
    """Logits of transformers, one pair at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = []
    for document in documents:
        inputs = tokenizer(QUERY, document, return_tensors="pt")
        if model.config.model_type not in ("bert", "roberta", "xlm-roberta"):
            inputs.pop("token_type_ids", None)
        elif model.config.type_vocab_size == 1:
            inputs["token_type_ids"].zero_()
        rows.append(model(**inputs).logits)
    return torch.cat(rows)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    folder = save_classifier(tmp_path, case)
    loaded = load_sequence_classifier(Settings(model=str(folder)))
    expected = reference(folder, DOCUMENTS)
    assert (scores(loaded, DOCUMENTS) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.allclose(scores(loaded, DOCUMENTS[1:2]), expected[1:2], atol=1e-5)
    assert (loaded.activation, loaded.labels) == ("sigmoid", ("LABEL_0",))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_modernbert_pools_as_its_config_says(tmp_path: Path, pooling: str) -> None:
    folder = save_classifier(tmp_path, "modernbert", classifier_pooling=pooling, classifier_bias=True, num_labels=3)
    expected = reference(folder, DOCUMENTS)
    loaded = load_sequence_classifier(Settings(model=str(folder)))
    assert (scores(loaded, DOCUMENTS) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (loaded.activation, len(loaded.labels)) == ("identity", 3)


def test_a_tokenizer_may_withhold_the_types(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, "bert")
    pairs = [(QUERY, text) for text in DOCUMENTS]
    typed = CrossEncoder(str(folder), device="cpu").predict(pairs)
    set_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    untyped = CrossEncoder(str(folder), device="cpu").predict(pairs)
    assert np.abs(typed - untyped).max() > 1e-3
    ours = scores(load_sequence_classifier(Settings(model=str(folder))), DOCUMENTS).sigmoid()[:, 0]
    assert ours.tolist() == pytest.approx(untyped.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.linear.Identity"}),
    ],
)
def test_the_activation_that_a_folder_declares(tmp_path: Path, name: str, content: dict[str, Any]) -> None:
    folder = save_classifier(tmp_path, "bert")
    set_json(folder / name, **content)
    assert load_sequence_classifier(Settings(model=str(folder))).activation == "identity"


def test_a_folder_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "roberta")
    save_tokenizer(folder)
    path = folder / "config.json"
    path.write_text(path.read_text().replace("RobertaModel", "RobertaForSequenceClassification"))
    with pytest.raises(ModelFolderError, match=r"classifier\.dense"):
        load_sequence_classifier(Settings(model=str(folder)))


@pytest.mark.parametrize("is_tied", [True, False])
@torch.inference_mode()
def test_a_judge_says_yes_as_often_as_its_recipe(tmp_path: Path, is_tied: bool) -> None:
    changes = {"tie_word_embeddings": is_tied, "max_position_embeddings": 128, "vocab_size": 128}
    folder = save_tiny_encoder(tmp_path, "qwen3", "ForCausalLM", **changes)
    save_tokenizer(folder)
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    fast.add_tokens(["yes", "no", "Judge", "whether", "<Document>:"])
    fast.save(str(folder / "tokenizer.json"))
    scorer, setup = load_yes_no_scorer(Settings(model=str(folder), max_model_len=128))
    sequences = JudgePreparer(setup.tokenizer, setup.max_tokens).from_pairs([QUERY], DOCUMENTS, RULES).sequences
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    yes, no = (setup.tokenizer.token_to_id(word) for word in ("yes", "no"))
    for ours, sequence in zip(scorer.launch(sequences).wait(), sequences, strict=True):
        logits = model(torch.tensor([sequence.token_ids])).logits[0, -1]
        expected = torch.stack([logits[no], logits[yes]]).softmax(0)[1].item()
        assert torch.tensor(ours[0]).sigmoid().item() == pytest.approx(expected, abs=1e-5)
