"""What is run before the first request comes: a step of every kind that kernels are compiled for."""

from itertools import product

import pytest
import torch

from services.generator.engine.build import build_model
from services.generator.runner.model_runner import ModelRunner
from services.generator.runner.sampler import Sampler
from services.generator.runner.step_graphs import StepOutputs
from services.generator.settings import GeneratorSettings


@pytest.fixture
def shapes(tiny_llama, monkeypatch):
    """Of the steps of a warm-up, by the most rows that there may be."""

    def of(max_num_seqs, max_num_batched_tokens=512):
        sizes = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        runner = build_model(GeneratorSettings(model=str(tiny_llama), num_gpu_blocks_override=16, **sizes)).runner
        run = []
        monkeypatch.setattr(ModelRunner, "_run_padding", lambda _runner, shape: run.append(shape))
        monkeypatch.setattr(ModelRunner, "_sample_padding", lambda *_: None)
        runner.warm_up()
        return run

    return of


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 5, 8, 32])
def test_attention_of_decode_rows_is_compiled_in_every_way_it_is_launched(shapes, num_kv_heads):
    from services.generator.kernels.paged_attention_decode import HALF_BLOCKS, num_splits  # brings in triton

    def launch(num_rows):
        return next(limit for limit, _ in HALF_BLOCKS if num_rows <= limit), num_splits(num_rows, num_kv_heads)

    launched = set(map(launch, range(1, 257)))
    assert launched == {launch(shape.num_decodes) for shape in shapes(256)}


def test_products_of_few_rows_are_compiled_for_every_number_of_them(shapes):
    from services.generator.kernels.skinny_linear import BLOCKS, GATED_BLOCKS, MAX_GATED_ROWS  # bring in triton

    def launch(num_rows):
        limits = (next(limit for limit, _ in table if num_rows <= limit) for table in (BLOCKS, GATED_BLOCKS))
        return max(16, 1 << (num_rows - 1).bit_length()), *limits

    launched = set(map(launch, range(1, MAX_GATED_ROWS + 1)))
    assert launched <= {launch(shape.num_tokens) for shape in shapes(4) if shape.num_decodes == 1}


def test_choices_are_compiled_for_all_that_rows_may_ask_for(tiny_llama, monkeypatch):
    runner = build_model(GeneratorSettings(model=str(tiny_llama), num_gpu_blocks_override=16)).runner
    one, chosen = torch.zeros(1, dtype=torch.int32), []
    outputs = StepOutputs(torch.zeros(1, 8), torch.zeros(1, 8), one, one)
    monkeypatch.setattr(ModelRunner, "_run_padding", lambda *_: outputs)
    monkeypatch.setattr(Sampler, "__call__", lambda _sampler, _logits, features, *_, **__: chosen.append(features))
    runner.warm_up()
    kinds = {(features.is_greedy, features.has_filters, features.changes_logits) for features in chosen}
    assert kinds == set(product((True, False), repeat=3))


@pytest.mark.parametrize(("max_rows", "max_tokens"), [(1, 16), (3, 24), (256, 16)])
def test_no_step_is_larger_than_there_may_be(shapes, max_rows, max_tokens):
    steps = shapes(max_rows, max_tokens)
    assert max(shape.num_tokens for shape in steps) == max_tokens
    assert max(shape.num_decodes for shape in steps) == min(max_rows, max_tokens)
