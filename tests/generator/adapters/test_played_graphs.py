"""Steps as replays, on a CPU: a graph is played that computes again whatever it was captured from.

So all but the capture itself is as on a GPU: which graph a step takes, how it is padded, and where its outputs are.
"""

import os
from contextlib import nullcontext

import pytest
import torch

from services.generator.core.launch import Launch
from services.generator.core.request import SamplingParams
from services.generator.engine.build import build_model
from services.generator.runner.step_graphs import StepGraphs
from services.generator.settings import GeneratorSettings
from tests.generator.adapters.conftest import make_adapter, reference_logits
from tests.generator.driving import OfflineEngine

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="runs with TRITON_INTERPRET=1"),
]

PROMPTS = [[7, 60, 3], [5, 8]]
NAMES = ["small", None]
NUM_NEW = (2, 3)


class PlayedGraph:
    """As much of a CUDAGraph as is used."""


@pytest.fixture
def played(monkeypatch):
    for name, made in (("graph_pool_handle", lambda: None), ("CUDAGraph", PlayedGraph), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext())
    capture = StepGraphs._capture

    def capture_played(self, compute, layout):
        captured = capture(self, compute, layout)

        def replay():
            outputs = compute(self._packed[: layout.borders()[-1]], layout, logits=captured.outputs.logits)
            captured.outputs.rows.copy_(outputs.rows)
            captured.outputs.positions.copy_(outputs.positions)

        captured.graph.replay = replay
        return captured

    monkeypatch.setattr(StepGraphs, "_capture", capture_played)


@pytest.mark.parametrize("base", ["llama"], indirect=True)
def test_steps_of_any_mix_are_replays_that_leave_their_logits_in_one_buffer(base, tmp_path, played):
    folder = make_adapter(base, tmp_path / "small", r=2, target_modules=["q_proj", "lm_head"])
    settings = {"kv_cache_memory_bytes": 2**22, "max_model_len": 32, "max_num_seqs": 2, "max_num_batched_tokens": 16}
    backends = {"attention_backend": "triton", "kernel_backend": "triton"}
    lora = {"lora": [f"small={folder}"], "lora_targets": ["q_proj", "lm_head"], "max_loras": 1, "max_lora_rank": 8}
    built = build_model(GeneratorSettings(model=str(base), **settings, **backends, **lora))
    runner = built.runner
    runner.capture_graphs(runner.graph_shapes.all)
    engine = OfflineEngine(built)
    params = [SamplingParams(temperature=0.0, max_tokens=count, logprobs=1) for count in NUM_NEW]
    outputs = engine.generate(PROMPTS, each=params, adapters=NAMES)
    assert set(runner.launches) == {Launch.REPLAY}
    for index, (prompt, name, output) in enumerate(zip(PROMPTS, NAMES, outputs, strict=True)):
        expected = reference_logits(base, folder if name else None, prompt + output)[len(prompt) - 1 : -1]
        assert output == expected.argmax(dim=-1).tolist()
        ours = torch.tensor([entry.logprob for entry in engine.logprobs[index]], dtype=torch.float64)
        assert (ours - torch.log_softmax(expected.double(), dim=-1).amax(dim=-1)).abs().max() < 1e-4
    graphs = runner._graphs
    assert {captured.outputs.logits.data_ptr() for captured in graphs._graphs.values()} == {graphs._logits.data_ptr()}
    assert len(graphs._logits) == 2
