"""Each encoder family on a CUDA device in half precision, where attention is flash and norms are fused, against `transformers`.

The measure of both is `transformers` in fp32: ours may be as far from it as its own half precision is, by the contract's factors.
"""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from shared.modeling.encoders import load_encoder
from shared.modeling.ragged import RaggedBatch
from tests.shared.modeling.tiny_bert import MAX_POSITIONS, VOCAB_SIZE
from tests.shared.modeling.tiny_encoders import CASES, save_tiny_encoder

pytestmark = pytest.mark.gpu
LENGTHS = [5, MAX_POSITIONS, 1, 23, 23]


@torch.inference_mode()
def reference(folder: Path, sequences: list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    """Hidden states of transformers on the device, one sequence at a time, one after another."""
    model = AutoModel.from_pretrained(folder, dtype=dtype).cuda().eval()
    states = [model(torch.tensor([ids], device="cuda")).last_hidden_state[0] for ids in sequences]
    return torch.cat(states).float()


@torch.inference_mode()
def encode(folder: Path, sequences: list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    device = torch.device("cuda")
    return load_encoder(folder, dtype, device).encode(RaggedBatch.from_token_ids(sequences, device)).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_half_precision_is_as_close_as_the_reference(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    rng = random.Random(1)
    sequences = [[rng.randrange(4, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    exact = reference(folder, sequences, torch.float32)
    low = (reference(folder, sequences, dtype) - exact).abs()
    ours = (encode(folder, sequences, dtype) - exact).abs()
    assert ours.max() <= 2 * low.max()
    assert ours.mean() <= 1.25 * low.mean()


@pytest.mark.parametrize("case", ["bert", "modernbert", "mistral_window"])
def test_a_sequence_is_the_same_alone_and_in_company(tmp_path: Path, case: str) -> None:
    folder = save_tiny_encoder(tmp_path, case)
    sequences = [[4 + (7 * place + length) % (VOCAB_SIZE - 4) for place in range(length)] for length in LENGTHS]
    together = encode(folder, sequences, torch.float16)
    alone = torch.cat([encode(folder, [ids], torch.float16) for ids in sequences])
    assert (together - alone).abs().max() <= 4e-3 * alone.abs().max()
