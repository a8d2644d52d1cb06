"""Images on a GPU: kernels, graphs of decode steps and heads in sections give the tokens of transformers."""

import pytest

from services.generator.core.launch import Launch
from tests.generator.vision.tiny_models import FAMILIES, generate, load_vision

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_transformers_and_decode_steps_are_replays(family, tmp_path):
    vision = load_vision(family, tmp_path)
    built = vision.build(device="cuda", dtype="float32", max_num_batched_tokens=16, num_gpu_blocks_override=64)
    parts = [("40x24#1", 9), (5, "24x56#2", 8), ("17x23#4", 3, "40x40#3", 1, "60x24#5", 7), (12,)]
    prompts = [vision.prompt(*each) for each in parts]
    for prompt, output in zip(prompts, generate(built, *prompts, max_tokens=12), strict=True):
        vision.check(prompt, output)
    assert built.runner.launches[Launch.REPLAY] > 0
    assert built.runner.launches[Launch.IMAGE] > 0
    assert built.runner.launches[Launch.NO_GRAPH] == 0


@pytest.mark.alone
def test_memory_is_measured_beside_a_vision_tower(tmp_path, utilization):
    settings = {"max_num_batched_tokens": 16, "gpu_memory_utilization": utilization}
    built = load_vision("qwen2_5", tmp_path).build(device="cuda", **settings)
    assert built.ready.num_blocks > 1000
