"""Which kind of scorer a folder becomes, and what stops the start.

Tiny folders only; what their scores are is checked elsewhere.
"""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import processors

from services.reranker.loading import load_scoring_model
from services.reranker.scorers import BiEncoderScorer, PairScorer
from services.reranker.settings import RerankerSettings
from shared.settings.errors import StartError
from shared.text.judge_preparer import JudgePreparer
from shared.text.pair_preparer import FramedPairPreparer
from tests.shared.modeling.tiny_bert import save_tokenizer, set_json, write_json
from tests.shared.modeling.tiny_encoders import save_classifier, save_tiny_encoder


def save_judge(folder: Path) -> Path:
    save_tokenizer(save_tiny_encoder(folder, "qwen3", "ForCausalLM", vocab_size=99))
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    fast.add_tokens(["yes", "no"])
    fast.save(str(folder / "tokenizer.json"))
    return folder


def load(folder: Path, **settings: Any) -> Any:
    return load_scoring_model(RerankerSettings(model=str(folder), **settings)).preparer.scorer


def test_a_generative_qwen3_is_a_judge_unless_it_declares_pooling(tmp_path: Path) -> None:
    scorer = load(save_judge(tmp_path))
    assert isinstance(scorer.pairs, JudgePreparer)
    kinds = ["Transformer", "Pooling"]
    write_json(tmp_path / "modules.json", [{"type": f"x.{kind}", "path": "." * (kind == kinds[0])} for kind in kinds])
    set_json(tmp_path / "config.json", pooling_mode="lasttoken")
    assert isinstance(load(tmp_path, pooling="last"), BiEncoderScorer)


def test_a_head_makes_a_cross_encoder_unless_told_otherwise(tmp_path: Path) -> None:
    save_classifier(tmp_path, "distilbert")
    scorer = load(tmp_path, activation="identity")
    assert isinstance(scorer, PairScorer)
    assert isinstance(scorer.pairs, FramedPairPreparer)
    assert scorer.activation == "identity"
    assert isinstance(load(tmp_path, score_type="bi-encoder", pooling="cls"), BiEncoderScorer)


def test_a_tokenizer_without_pairs_stops_the_start(tmp_path: Path) -> None:
    save_classifier(tmp_path, "bert")
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.post_processor = processors.ByteLevel()
    fast.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(StartError, match="texts of a pair"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"score_type": "bi-encoder", "pooling": "cls", "activation": "identity"}, "--activation"),
        ({"score_type": "qwen3-reranker"}, "yes and no"),
    ],
)
def test_settings_that_do_not_fit_the_folder(tmp_path: Path, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(StartError, match=word):
        load(save_classifier(tmp_path, "bert"), **settings)


def test_an_activation_that_is_not_supported_is_named(tmp_path: Path) -> None:
    save_classifier(tmp_path, "bert")
    set_json(tmp_path / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"})
    with pytest.raises(StartError, match="tanh"):
        load(tmp_path)
    assert load(tmp_path, activation="sigmoid").activation == "sigmoid"
