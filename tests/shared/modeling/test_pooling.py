"""Pooling and normalisation, and a whole text encoder, against sentence-transformers on the same folder.

The folders are saved by sentence-transformers itself, so its newest dialect of the files is read here.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from shared.modeling.pooling import pool
from shared.modeling.ragged import RaggedBatch
from shared.modeling.text_encoder import load_text_encoder
from shared.settings.base import settings_config
from shared.settings.encoder import EncoderSettings
from tests.shared.modeling.tiny_bert import save_tiny_bert, save_tokenizer

CPU = torch.device("cpu")


class Settings(EncoderSettings):
    model_config = settings_config("test")
    port: int = 0


def make_texts(count: int, seed: int = 5) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(f"w{rng.randrange(4, 97)}" for _ in range(rng.randint(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize(
    "mode", ["mean", "cls", "lasttoken", "max", "weightedmean", "mean_sqrt_len_tokens", ("max", "cls")]
)
def test_vectors_equal_sentence_transformers(tmp_path: Path, mode: Any, is_normalized: bool) -> None:
    save_tiny_bert(tmp_path / "bert")
    save_tokenizer(tmp_path / "bert")
    transformer = Transformer(str(tmp_path / "bert"))
    pooling = Pooling(32, pooling_mode=mode)
    torch.manual_seed(0)
    dense = [
        Dense(pooling.get_embedding_dimension(), 12),
        Dense(12, 7, bias=False, activation_function=torch.nn.GELU()),
    ]
    modules = [transformer, pooling, *([*dense, Normalize()] if is_normalized else [])]
    peer = SentenceTransformer(modules=modules, device="cpu")
    peer.save(str(tmp_path / "saved"))
    texts = make_texts(20)
    expected = peer.encode(texts)
    encoder = load_text_encoder(Settings(model=str(tmp_path / "saved")))
    ours = encoder.launch(encoder.preparer.from_texts(texts, prompt="", param="input").sequences).wait()
    assert np.abs(ours - expected).max() <= 1e-5 * np.abs(expected).max()


def test_pooling_formulas() -> None:
    hidden = torch.randn(6, 3, dtype=torch.bfloat16)
    batch = RaggedBatch.from_token_ids([[1, 2], [3, 4, 5, 6]], CPU)
    parts = [hidden[:2].float(), hidden[2:].float()]
    assert torch.allclose(pool(hidden, batch, ["mean"]), torch.stack([part.mean(0) for part in parts]))
    assert torch.equal(pool(hidden, batch, ["cls"]), torch.stack([part[0] for part in parts]))
    assert torch.equal(pool(hidden, batch, ["last"]), torch.stack([part[-1] for part in parts]))
    assert pool(hidden, batch, ["mean"]).dtype is torch.float32
