"""The BERT encoder against transformers' on the same weights, and what it refuses to load.

Every promise of batching is here too: a sequence's states are the same alone and beside others.
"""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from shared.modeling.encoders import load_encoder
from shared.modeling.ragged import RaggedBatch
from shared.settings.errors import ModelFolderError
from tests.shared.modeling.tiny_bert import MAX_POSITIONS, VOCAB_SIZE, save_tiny_bert

CPU = torch.device("cpu")


def make_sequences(lengths: list[int], seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def reference(folder: Path, sequences: list[list[int]]) -> torch.Tensor:
    """Hidden states of transformers, one sequence at a time, one after another."""
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([ids])).last_hidden_state[0] for ids in sequences])


def encode(folder: Path, sequences: list[list[int]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with torch.inference_mode():
        return load_encoder(folder, dtype, CPU).encode(RaggedBatch.from_token_ids(sequences, CPU))


@pytest.mark.parametrize("lengths", [[1], [5], [7, 7, 7], [1, 9, 3], [MAX_POSITIONS, 1, 40, 40]])
@pytest.mark.parametrize("has_prefix", [False, True])
def test_hidden_states_equal_transformers(tmp_path: Path, lengths: list[int], has_prefix: bool) -> None:
    folder = save_tiny_bert(tmp_path, has_prefix=has_prefix)
    sequences = make_sequences(lengths)
    expected = reference(folder, sequences)
    assert (encode(folder, sequences) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_activations_equal_transformers(tmp_path: Path, activation: str) -> None:
    folder = save_tiny_bert(tmp_path, hidden_act=activation)
    sequences = make_sequences([4, 11])
    expected = reference(folder, sequences)
    assert (encode(folder, sequences) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_close_as_the_reference(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = save_tiny_bert(tmp_path)
    sequences = make_sequences([30, 5, 17])
    exact = reference(folder, sequences)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=dtype).eval()
    with torch.inference_mode():
        low = torch.cat([model(torch.tensor([ids])).last_hidden_state[0] for ids in sequences]).float()
    ours = encode(folder, sequences, dtype).float()
    assert (ours - exact).abs().max() <= 2 * (low - exact).abs().max()
    assert (ours - exact).abs().mean() <= 1.25 * (low - exact).abs().mean()


def test_pad_and_unpad_are_inverse() -> None:
    batch = RaggedBatch.from_token_ids(make_sequences([3, 1, 6]), CPU)
    flat = torch.randn(10, 4)
    padded = batch.pad(flat)
    assert padded.shape == (3, 6, 4)
    assert torch.equal(batch.unpad(padded), flat)
    assert batch.mask is not None
    assert padded[~batch.mask[:, 0, 0]].abs().sum() == 0


def test_a_batch_of_equal_lengths_has_no_mask() -> None:
    batch = RaggedBatch.from_token_ids(make_sequences([4, 4]), CPU)
    assert batch.mask is None
    assert batch.padded_index is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["NomicBertModel"]}, "NomicBertModel"),
        ({"architectures": []}, "architecture"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "mish"}, "mish"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"intermediate_size": 49}, "intermediate"),
        ({"type_vocab_size": None}, "type_vocab_size"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, object], word: str) -> None:
    folder = save_tiny_bert(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ModelFolderError, match=word):
        load_encoder(folder, torch.float32, CPU)


def test_unknown_tensors_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path, num_hidden_layers=3)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 2}))
    with pytest.raises(ModelFolderError, match=r"encoder\.layer\.2"):
        load_encoder(folder, torch.float32, CPU)
