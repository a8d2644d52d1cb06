"""Steps as replays of CUDA graphs: any number of rows, any mix of adapters, slots that change hands between replays."""

from itertools import product

import pytest
import torch

from services.generator.core.launch import Launch
from services.generator.core.request import SamplingParams
from services.generator.engine.build import build_model
from services.generator.settings import GeneratorSettings
from tests.generator.adapters.conftest import ALL, make_adapter, reference_logits
from tests.generator.driving import OfflineEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]
NUM_NEW = 8
RANDOM = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(0, 250, (int(n),), generator=RANDOM).tolist() for n in torch.arange(3, 60, 5)]


@pytest.fixture(scope="module")
def folders(base, tmp_path_factory):
    """Five adapters of different ranks, on everything or on some."""
    made = tmp_path_factory.mktemp("adapters")
    folders = {f"r{rank}": make_adapter(base, made / f"r{rank}", seed=rank, r=rank) for rank in (1, 3, 8)}
    folders["some"] = make_adapter(base, made / "some", seed=9, r=5, target_modules=["k_proj", "down_proj"])
    folders["rs"] = make_adapter(base, made / "rs", seed=10, r=6, use_rslora=True)
    return {None: None, **folders}


@pytest.fixture(scope="module")
def outer(base, tmp_path_factory):
    """Adapters of the embedding, of the head, and of everything, beside one of layers alone."""
    made = tmp_path_factory.mktemp("outer")
    kinds = {
        "embed": {"r": 3, "target_modules": ["embed_tokens"]},
        "head": {"r": 5, "target_modules": ["lm_head"]},
        "all": {"r": 8, "target_modules": [*ALL, "embed_tokens", "lm_head"]},
        "inner": {"r": 2},
    }
    folders = {
        name: make_adapter(base, made / name, seed=seed, **kind) for seed, (name, kind) in enumerate(kinds.items())
    }
    return {None: None, **folders}


def run(base, folders, **changes):
    lora = [f"{name}={folder}" for name, folder in folders.items() if name]
    settings = {"max_model_len": 128, "max_num_seqs": 12, "num_gpu_blocks_override": 256, "max_lora_rank": 8}
    built = build_model(GeneratorSettings(model=str(base), device="cuda", lora=lora, **{**settings, **changes}))
    engine = OfflineEngine(built)
    names = list(folders)
    adapters = [names[index % len(names)] for index in range(len(PROMPTS))]
    params = [SamplingParams(temperature=0.0, max_tokens=NUM_NEW + i % 3, logprobs=1) for i in range(len(PROMPTS))]
    outputs = engine.generate(PROMPTS, each=params, adapters=adapters)
    return built, engine, list(zip(PROMPTS, adapters, outputs, strict=True))


@pytest.mark.parametrize("max_loras", [6, 2], ids=["all-resident", "slots-change-hands"])
def test_every_row_is_what_peft_says(base, folders, max_loras):
    check(base, folders, *run(base, folders, dtype="float32", max_loras=max_loras))


@pytest.mark.parametrize("max_loras", [4, 2], ids=["all-resident", "slots-change-hands"])
def test_adapters_of_embedding_and_head_are_what_peft_says(base, outer, max_loras):
    targets = [*ALL, "embed_tokens", "lm_head"]
    check(base, outer, *run(base, outer, dtype="float32", max_loras=max_loras, lora_targets=targets))


def check(base, folders, built, engine, answers):
    """Every row's greedy tokens and their log-probabilities, and that all decode steps were replays."""
    assert built.runner.launches[Launch.REPLAY] > NUM_NEW - 2
    assert built.runner.launches[Launch.NO_GRAPH] == 0
    for index, (prompt, name, output) in enumerate(answers):
        expected = reference_logits(base, folders[name], prompt + output)[len(prompt) - 1 : -1].double()
        assert output == expected.argmax(dim=-1).tolist()
        ours = torch.tensor([entry.logprob for entry in engine.logprobs[index]], dtype=torch.float64)
        assert (ours - torch.log_softmax(expected, dim=-1).amax(dim=-1)).abs().max() < 1e-3


def test_half_precision_is_as_near_as_the_reference_in_it(base, folders):
    _, engine, answers = run(base, folders, dtype="bfloat16", max_loras=6)
    ours, theirs = [], []
    for index, (prompt, name, output) in enumerate(answers):
        exact, rounded = (
            logprobs_of(reference_logits(base, folders[name], prompt + output, dtype), prompt, output)
            for dtype in ("float32", "bfloat16")
        )
        ours.append(torch.tensor([entry.logprob for entry in engine.logprobs[index]], dtype=torch.float64) - exact)
        theirs.append(rounded - exact)
    ours, theirs = torch.cat(ours).abs(), torch.cat(theirs).abs()
    assert ours.mean() <= 1.25 * theirs.mean()
    assert ours.max() <= 2 * theirs.max()


def logprobs_of(logits, prompt, output):
    """Of the tokens that follow the prompt."""
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].double(), dim=-1)
    return logprobs.gather(1, torch.tensor(output)[:, None])[:, 0]


def test_graphs_change_nothing(base, folders):
    """In steps that compute prompts too, with decode rows among them: more prompts than may run at once, in chunks."""
    settings = {"dtype": "float32", "max_loras": 3, "max_num_seqs": 5, "max_num_batched_tokens": 24}
    built, _, with_graphs = run(base, folders, **settings)
    assert set(built.runner.launches) == {Launch.REPLAY}
    built, _, without = run(base, folders, enforce_eager=True, **settings)
    assert Launch.REPLAY not in built.runner.launches
    assert with_graphs == without


@pytest.mark.alone
def test_nothing_is_compiled_while_rows_ask_for_all_kinds_of_choices(base, folders, monkeypatch):
    import triton

    compiled = []
    built = build_model(GeneratorSettings(model=str(base), device="cuda", num_gpu_blocks_override=64, max_num_seqs=4))
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **found: compiled.append(found["repr"]))
    engine = OfflineEngine(built)
    for temperature, top_p, bias in product((0.0, 1.0), (1.0, 0.9), ({}, {3: 1.0})):
        engine.generate([[1, 2, 3]] * 3, max_tokens=3, temperature=temperature, top_p=top_p, logit_bias=bias)
    assert compiled == []


@pytest.mark.alone
def test_memory_is_measured_and_a_model_that_does_not_fit_is_refused(base, utilization):
    from shared.settings.errors import StartError

    settings = {"model": str(base), "device": "cuda", "max_num_seqs": 4, "max_model_len": 64}
    built = build_model(GeneratorSettings(gpu_memory_utilization=utilization, **settings))
    assert built.ready.num_blocks > 1000
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert utilization - 0.01 < 1 - free / total < utilization  # graphs included
    del built
    with pytest.raises(StartError, match="GiB are missing for a KV cache"):
        build_model(GeneratorSettings(gpu_memory_utilization=0.001, **settings))


@pytest.mark.alone
def test_graphs_take_about_what_a_few_of_them_said(base, folders, utilization, monkeypatch):
    from services.generator.engine import runner_start
    from services.generator.engine.device_memory import SPARE_BYTES
    from tests.fakes.recorder import record

    logs = record(monkeypatch, runner_start)
    lora = [f"{name}={folder}" for name, folder in folders.items() if name]
    settings = {"max_num_seqs": 64, "max_model_len": 64, "max_loras": 6, "max_lora_rank": 8, "lora": lora}
    built = build_model(
        GeneratorSettings(model=str(base), device="cuda", gpu_memory_utilization=utilization, **settings)
    )
    (captured,) = [line for line in logs if line["event"] == "graphs_captured"]
    assert captured["num_graphs"] == built.runner.num_graphs > 8
    assert captured["gib"] - captured["reckoned_gib"] < SPARE_BYTES / 2**30


def test_more_blocks_than_fit_are_refused(base):
    from shared.settings.errors import StartError

    with pytest.raises(StartError, match=r"--num-gpu-blocks-override \d+: .* GiB more than are free"):
        build_model(GeneratorSettings(model=str(base), device="cuda", num_gpu_blocks_override=2**31))
