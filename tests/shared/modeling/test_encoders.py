"""Every encoder family against transformers on the same weights, alone and batched, bare and saved with a head.

Also what only some families have: windows, relative positions, positions that skip padding, types of tokens, both directions.
"""

import random
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from shared.modeling.encoders import load_encoder
from shared.modeling.ragged import RaggedBatch
from shared.settings.errors import ModelFolderError
from tests.shared.modeling.tiny_bert import MAX_POSITIONS, VOCAB_SIZE, set_json
from tests.shared.modeling.tiny_encoders import CASES, save_tiny_encoder

CPU = torch.device("cpu")
BATCHES = [[1], [30, 30], [5, MAX_POSITIONS, 1, 23]]
WITH_DECODER_HEAD = {"qwen3", "qwen2", "llama", "mistral_window"}


def make_sequences(lengths: list[int]) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(4, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@torch.inference_mode()
def reference(
    folder: Path, sequences: list[list[int]], dtype: torch.dtype = torch.float32, **inputs: torch.Tensor
) -> torch.Tensor:
    """Hidden states of transformers, one sequence at a time, one after another."""
    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
    return torch.cat([model(torch.tensor([ids]), **inputs).last_hidden_state[0] for ids in sequences])


@torch.inference_mode()
def encode(folder: Path, batch: RaggedBatch) -> torch.Tensor:
    return load_encoder(folder, torch.float32, CPU).encode(batch)


def assert_close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_equal_transformers(tmp_path: Path, case: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    for lengths in BATCHES:
        sequences = make_sequences(lengths)
        assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), reference(folder, sequences))


def test_norms_under_their_first_names(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "bert", "ForMaskedLM")
    sequences = make_sequences([9])
    expected = reference(folder, sequences)
    path = folder / "model.safetensors"
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(path)
    for new, old in names.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    save_file(tensors, path)
    assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), expected)


def test_modernbert_before_transformers_5(tmp_path: Path) -> None:
    thetas = {"full_attention": 500.0, "sliding_attention": 70.0}
    parameters = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    folder = save_tiny_encoder(tmp_path, "modernbert", rope_parameters=parameters, global_attn_every_n_layers=2)
    sequences = make_sequences([40, 9])
    expected = reference(folder, sequences)
    old = {"global_rope_theta": 500.0, "local_rope_theta": 70.0, "global_attn_every_n_layers": 2}
    set_json(folder / "config.json", rope_parameters=None, layer_types=None, **old)
    assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), expected)


def test_other_families_run_through_transformers(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "electra")
    sequences = make_sequences([5, 30, 1])
    assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), reference(folder, sequences))


@pytest.mark.parametrize(
    ("case", "changes", "word"),
    [
        ("electra", {"num_hidden_layers": 3}, r"the weights lack encoder\.layer\.2"),
        ("bert", {"architectures": ["NomicBertModel"]}, "takes the folder for Bert"),
        ("bert", {"architectures": ["OwnModel"], "model_type": "own"}, "OwnModel is not supported"),
    ],
)
def test_what_transformers_cannot_load_either(tmp_path: Path, case: str, changes: dict[str, object], word: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    set_json(folder / "config.json", **changes)
    with pytest.raises(ModelFolderError, match=word):
        load_encoder(folder, torch.float32, CPU)


@pytest.mark.parametrize("case", ["bert", "modernbert", "qwen3"])
def test_pickled_weights_are_refused_with_the_command_that_converts_them(tmp_path: Path, case: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFolderError, match="save_pretrained"):
        load_encoder(folder, torch.float32, CPU)


def test_without_transformers_the_start_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_encoder(tmp_path, "electra")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelFolderError, match="pip install transformers"):
        load_encoder(folder, torch.float32, CPU)


@pytest.mark.parametrize("case", CASES)
def test_a_folder_saved_with_a_head_gives_the_same(tmp_path: Path, case: str) -> None:
    head = "ForCausalLM" if case in WITH_DECODER_HEAD else "ForMaskedLM"
    folder = save_tiny_encoder(tmp_path, case, head)
    sequences = make_sequences([9, 4])
    assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), reference(folder, sequences))


@pytest.mark.parametrize("case", ["mpnet", "modernbert", "mistral_window"])
def test_half_precision_is_as_close_as_the_reference(tmp_path: Path, case: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    sequences = make_sequences([30, 5, 17])
    exact = reference(folder, sequences)
    low = reference(folder, sequences, dtype=torch.bfloat16).float()
    with torch.inference_mode():
        batch = RaggedBatch.from_token_ids(sequences, CPU)
        ours = load_encoder(folder, torch.bfloat16, CPU).encode(batch).float()
    assert (ours - exact).abs().max() <= 2 * (low - exact).abs().max()
    assert (ours - exact).abs().mean() <= 1.25 * (low - exact).abs().mean()


@pytest.mark.parametrize("case", ["roberta", "mpnet"])
def test_positions_skip_the_padding_token(tmp_path: Path, case: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    sequences = [[5, 1, 1, 9, 7], [8, 8], [1, 4]]
    expected = reference(folder, sequences)
    assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), expected)


def test_relative_positions_are_right_far_away(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "mpnet", max_position_embeddings=302)
    sequences = make_sequences([300])
    assert_close(encode(folder, RaggedBatch.from_token_ids(sequences, CPU)), reference(folder, sequences))


def test_types_of_tokens(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "bert")
    types = [0, 0, 1, 1, 0]
    (ids,) = make_sequences([5])
    batch = RaggedBatch.from_token_ids([ids, ids], CPU, [types, [0] * 5])
    expected = [reference(folder, [ids], token_type_ids=torch.tensor([kinds])) for kinds in (types, [0] * 5)]
    assert_close(encode(folder, batch), torch.cat(expected))


def test_a_decoder_that_declares_both_directions_looks_both_ways(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path, "qwen2", is_causal=False)
    ids = make_sequences([8])[0]
    batch = RaggedBatch.from_token_ids([ids, ids[:3]], CPU)
    # With padding beside it transformers makes a mask of its own; without, its attention would stay causal.
    padded = torch.tensor([ids, ids[:3] + [0] * 5])
    mask = torch.tensor([[1] * 8, [1] * 3 + [0] * 5])
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(padded, attention_mask=mask).last_hidden_state
    assert_close(encode(folder, batch), torch.cat([states[0], states[1, :3]]))


@pytest.mark.parametrize(
    ("case", "changes", "word"),
    [
        ("mistral_window", {"is_causal": False}, "is_causal"),
        ("qwen3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
        ("modernbert", {"hidden_activation": "mish"}, "mish"),
        ("distilbert", {"n_heads": 5}, "n_heads"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, case: str, changes: dict[str, object], word: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    set_json(folder / "config.json", **changes)
    with pytest.raises(ModelFolderError, match=word):
        load_encoder(folder, torch.float32, CPU)
