"""Our numbers with an adapter against `peft`'s, for each option that PEFT's configuration has, alone and in mixed batches."""

import random

import pytest
import torch
from pydantic import ValidationError

from services.generator.engine.build import build_model
from services.generator.settings import GeneratorSettings
from shared.settings.errors import StartError
from tests.generator.adapters.conftest import ALL, make_adapter, reference_logits, reference_model, reference_tokens
from tests.generator.driving import OfflineEngine

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks transformers
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True:UserWarning"),  # and sets it back, as we do
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model .*tie_word_embeddings=True:UserWarning"),
]
OUTER = ["embed_tokens", "lm_head"]
OPTIONS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "rank_pattern": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 7}, "alpha_pattern": {"o_proj": 3}},
    "regex_pattern": {"rank_pattern": {r".*\.0\.self_attn\.[qk]_proj": 6}, "alpha_pattern": {r"v_pro.": 1}},
    "few_modules": {"target_modules": ["v_proj", "up_proj"]},
    "dotted_suffix": {"target_modules": ["self_attn.q_proj", "mlp.gate_proj"]},
    "regex_modules": {"target_modules": r".*layers\.1\.(self_attn|mlp)\.(q|o|down)_proj"},
    "all_linear": {"target_modules": "all-linear"},
    "exclude": {"exclude_modules": ["k_proj", "layers.0.mlp.up_proj"]},
    "one_layer": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "one_layer_as_integer": {"layers_to_transform": 0},
    "embedding": {"target_modules": ["embed_tokens"], "r": 3, "use_rslora": True},
    "head": {"target_modules": ["lm_head"], "r": 5},
    "everything": {"target_modules": [*ALL, *OUTER], "rank_pattern": {"lm_head": 1, "embed_tokens": 8}},
    "dropout_and_gaussian": {"lora_dropout": 0.3, "fan_in_fan_out": True},
}


def build(base, adapters, **settings):
    flags = [f"{name}={folder}" for name, folder in adapters.items()]
    sizes = {"num_gpu_blocks_override": 64, "max_lora_rank": 8, "lora_targets": [*ALL, *OUTER]}
    return OfflineEngine(build_model(GeneratorSettings(model=str(base), lora=flags, **{**sizes, **settings})))


def logits_of(engine, tokens, adapter):
    """[T, V] from the engine's log-probabilities: all of them are asked for, so they are logits up to a constant per row."""
    (_,) = engine.generate([tokens], max_tokens=1, prompt_logprobs=259, adapters=[adapter])
    rows = torch.full((len(tokens) - 1, 259), float("nan"))
    for row, entry in zip(rows, engine.prompt_logprobs[0], strict=True):
        ids, values = zip(*entry.top, strict=True)
        row[list(ids)] = torch.tensor(values)
    return rows


@pytest.mark.parametrize("option", OPTIONS)
def test_logits_are_those_of_peft(base, tmp_path, option):
    adapter = make_adapter(base, tmp_path / "adapter", **OPTIONS[option])
    engine = build(base, {"a": adapter})
    tokens = [(17 * position) % 250 for position in range(40)]
    theirs = reference_logits(base, adapter, tokens)[:-1]
    ours = logits_of(engine, tokens, "a")
    error = (ours - torch.log_softmax(theirs, dim=-1)).abs().max()
    assert error <= 1e-4 * theirs.abs().max()
    plain = reference_logits(base, None, tokens)[:-1]
    assert (theirs - plain).abs().max() > 0.01 * plain.abs().max(), "the adapter does nothing, so nothing was shown"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_in_half_precision_are_as_near_to_the_truth_as_those_of_peft(base, tmp_path, dtype):
    adapter = make_adapter(base, tmp_path / "adapter", **OPTIONS["everything"])
    tokens = [(17 * position) % 250 for position in range(80)]
    with torch.inference_mode():
        truth, theirs = (
            torch.log_softmax(
                reference_model(base, adapter, each)(torch.tensor([tokens])).logits[0, :-1].float(), dim=-1
            )
            for each in ("float32", dtype)
        )
    ours = logits_of(build(base, {"a": adapter}, dtype=dtype), tokens, "a")
    our_error, their_error = (ours - truth).abs(), (theirs - truth).abs()
    assert our_error.max() <= 2 * their_error.max()
    assert our_error.mean() <= 1.25 * their_error.mean()


@pytest.mark.parametrize("option", ["plain", "rslora", "rank_pattern"])
def test_logits_are_those_of_merged_weights(base, tmp_path, option):
    """For modules of layers; PEFT's own merge is wrong for a tied head."""
    adapter = make_adapter(base, tmp_path / "adapter", **OPTIONS[option])
    tokens = [(29 * position) % 250 for position in range(40)]
    with torch.inference_mode():
        theirs = reference_model(base, adapter).merge_and_unload()(torch.tensor([tokens])).logits[0, :-1]
    ours = logits_of(build(base, {"a": adapter}), tokens, "a")
    assert (ours - torch.log_softmax(theirs, dim=-1)).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("module", OUTER)
def test_of_a_tied_pair_only_the_one_with_the_adapter_changes(tied, tmp_path, module):
    adapter = make_adapter(tied, tmp_path / "adapter", target_modules=[module])
    tokens = [(17 * position) % 250 for position in range(20)]
    theirs = reference_logits(tied, adapter, tokens)[:-1]
    error = (logits_of(build(tied, {"a": adapter}), tokens, "a") - torch.log_softmax(theirs, dim=-1)).abs().max()
    assert error <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("module", OUTER)
def test_an_adapter_of_a_module_that_the_bank_has_no_room_for_stops_the_start(base, tmp_path, module):
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj", module])
    with pytest.raises(StartError, match=rf"{module}: is adapted, .* start with {module} in --lora-targets"):
        build(base, {"a": adapter}, lora_targets=ALL)


def test_targets_are_names_of_modules():
    with pytest.raises(ValidationError, match="lora_targets"):
        GeneratorSettings(model="m", lora_targets=["q_proj", "embeddings"])


def test_five_adapters_and_the_base_model_in_one_batch_each_get_their_own_text(base, tmp_path):
    """Different ranks and targets, prefill and decode mixed, slots and blocks too few for all: preempted and resumed."""
    kinds = [
        {"r": 8, "target_modules": [*ALL, "lm_head"]},
        {"r": 1},
        {"r": 3, "target_modules": ["q_proj", "embed_tokens"]},
        {"use_rslora": True},
        {"r": 5, "target_modules": [*ALL[4:], *OUTER]},
    ]
    adapters = {
        f"a{number}": make_adapter(base, tmp_path / str(number), seed=number, **kind)
        for number, kind in enumerate(kinds)
    }
    sizes = {"max_loras": 3, "max_num_seqs": 6, "max_num_batched_tokens": 24, "lora_max_wait": 0.01}
    blocks = {"block_size": 4, "max_model_len": 60, "num_gpu_blocks_override": 32}
    engine = build(base, adapters, **sizes, **blocks)
    plans = []
    engine.before_step = plans.append
    rng = random.Random(0)
    names = [None, *adapters] * 2
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 40))] for _ in names]
    together = engine.generate(prompts, max_tokens=8, adapters=names)
    assert engine.stats().num_preemptions > 0
    assert any(0 < plan.num_decodes < len(plan.rows) and len(set(plan.adapter_slots)) == 4 for plan in plans)
    assert sum(len(plan.adapter_copies) for plan in plans) > len(adapters), "no adapter had to come back to the bank"
    plain = build(base, {})
    for prompt, name, output in zip(prompts, names, together, strict=True):
        assert output == reference_tokens(base, adapters.get(name), prompt, 8)
        assert engine.generate([prompt], max_tokens=8, adapters=[name]) == [output]
        assert name is not None or plain.generate([prompt], max_tokens=8) == [output]


def test_base_rows_are_those_of_an_engine_without_a_bank(base, tmp_path):
    adapter = make_adapter(base, tmp_path / "adapter")
    prompts = [list(range(20, 50)), list(range(60, 65))]
    plain = build(base, {}).generate(prompts, max_tokens=10)
    assert build(base, {"a": adapter}).generate(prompts, max_tokens=10) == plain
