"""Each family on a CUDA device against `transformers` in fp32: greedy text, prompts in chunks, several rows at once."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.generator.core.launch import Launch
from services.generator.engine.build import build_model
from services.generator.settings import GeneratorSettings
from tests.generator.driving import OfflineEngine
from tests.shared.modeling.tiny_decoder import FAMILIES, save_tiny

pytestmark = pytest.mark.gpu
NUM_NEW = 12


@pytest.mark.parametrize("case", sorted(FAMILIES))
def test_greedy_text(case, tmp_path: Path):
    family, changes = FAMILIES[case]
    save_tiny(tmp_path, family, eos_token_id=None, **changes)
    random = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 250, (n,), generator=random).tolist() for n in (1, 5, 40, 77)]
    settings = {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 64}
    built = build_model(GeneratorSettings(model=str(tmp_path), device="cuda", dtype="float32", **settings))
    outputs = OfflineEngine(built).generate(prompts, max_tokens=NUM_NEW)
    assert built.runner.launches[Launch.REPLAY] > 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        assert output == logits.argmax(dim=-1).tolist()
