"""Prompts with images through scheduler, cache and runner: the numbers of transformers, however a prompt is cut or shared."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from services.generator.core.launch import Launch
from services.generator.core.request import SamplingParams
from services.generator.engine.build import BuiltModel
from tests.generator.driving import OfflineEngine
from tests.generator.vision.tiny_models import FAMILIES, Prompt, Vision, generate, load_vision

RANK = 4
TENSORS = "adapter_model.safetensors"


@pytest.fixture(scope="module", params=FAMILIES)
def vision(request, tmp_path_factory) -> Vision:
    return load_vision(request.param, tmp_path_factory.mktemp(request.param))


def our_logits(built: BuiltModel, prompt: Prompt) -> torch.Tensor:
    """Of every position of a prompt."""
    engine, rows = OfflineEngine(built), []

    def keep_all(plan):
        with torch.inference_mode():
            rows.append(built.runner.logits(built.runner.execute(plan).outputs.hidden))

    engine.before_step = keep_all
    engine.generate([prompt.token_ids], images=[prompt.images], max_tokens=1)
    return torch.cat(rows)


DECODER = "base_model.model.model.language_model."


def save_adapter(vision: Vision, folder: Path) -> Path:
    """Of the decoder's embedding and of two projections in each layer, named as PEFT names them in the whole model."""
    random = torch.Generator().manual_seed(0)
    text = vision.reference.config.text_config
    tensors = {}
    for name, module in decoder_of(vision.reference).named_modules():
        shape = getattr(module, "weight", torch.zeros(0)).shape
        if name == "embed_tokens":
            tensors[f"{name}.lora_embedding_A"] = torch.randn(RANK, text.vocab_size, generator=random)
            tensors[f"{name}.lora_embedding_B"] = torch.randn(text.hidden_size, RANK, generator=random)
        elif name.endswith(("q_proj", "v_proj")):
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, shape[1], generator=random) / 8
            tensors[f"{name}.lora_B.weight"] = torch.randn(shape[0], RANK, generator=random)
    save_file({f"{DECODER}{name}": tensor for name, tensor in tensors.items()}, folder / TENSORS)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK}
    config["target_modules"] = ["q_proj", "v_proj", "embed_tokens"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def merged(model: PreTrainedModel, adapter: Path) -> Iterator[None]:
    """The model with an adapter of scale 1 in its weights."""
    tensors = {name.removeprefix(DECODER): t for name, t in load_file(adapter / TENSORS).items()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in decoder_of(model).named_modules():
        for a, b in ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B")):
            if name + a in tensors:
                change = tensors[name + b] @ tensors[name + a]
                module.weight.data += change if name != "embed_tokens" else change.T
    yield
    model.load_state_dict(before)


def decoder_of(model: PreTrainedModel) -> torch.nn.Module:
    return model.model.language_model


def forget_images(built: BuiltModel) -> None:
    """Nothing is in the encoder's cache, nor in that of prefixes."""
    built.scheduler.recover()


@pytest.fixture(scope="module")
def built(vision) -> BuiltModel:
    """Chunks of 13 tokens, so that images are cut; blocks of 4."""
    return vision.build(max_num_batched_tokens=13, block_size=4)


def test_every_chunk_size_gives_transformers_logits(vision):
    prompt = vision.prompt(2, "24x24#1", 1, "32x24#2", 1)
    theirs = vision.logits(prompt, [])
    built = vision.build(enable_prefix_caching=False)
    for chunk in range(1, len(prompt.token_ids) + 1):
        forget_images(built)
        built.scheduler._limits = replace(built.scheduler._limits, max_num_batched_tokens=chunk)
        ours = our_logits(built, prompt)
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max(), chunk


def test_prompts_of_all_kinds_at_once_get_transformers_tokens(vision, built):
    parts = [("40x24#1", 9), (5, "24x56#2", 8), (6, "40x40#3"), ("17x23#4", 3, "40x40#3", 1, "60x24#5", 7), (12,)]
    prompts = [vision.prompt(*each) for each in parts]
    for prompt, output in zip(prompts, generate(built, *prompts, max_tokens=6), strict=True):
        vision.check(prompt, output)


def test_prompts_that_differ_only_in_the_image_differ_cold_and_warm(vision, built):
    forget_images(built)
    prompts = [vision.prompt(9, f"24x24#{seed}", 9) for seed in (11, 12)]
    assert prompts[0].token_ids == prompts[1].token_ids
    before = built.scheduler.stats()
    cold = generate(built, *prompts, max_tokens=5)
    warm = generate(built, *reversed(prompts), max_tokens=5)[::-1]
    after = built.scheduler.stats()
    assert after.num_encoded_images - before.num_encoded_images == 2
    assert after.num_prefix_hit_tokens > before.num_prefix_hit_tokens
    assert cold == warm
    for prompt, output in zip(prompts, cold, strict=True):
        vision.check(prompt, output)


def test_copies_of_a_prompt_share_one_encoding_and_draw_their_own_tokens(vision, built):
    forget_images(built)
    prompt = vision.prompt(2, "24x24#21", 2)
    params = [SamplingParams(max_tokens=8, temperature=1.0, seed=seed) for seed in range(4)]
    before = built.scheduler.stats().num_encoded_images
    together = generate(built, *[prompt] * 4, each=params)
    assert built.scheduler.stats().num_encoded_images == before + 1
    assert len({tuple(output) for output in together}) > 1
    for output, each in zip(together, params, strict=True):
        assert generate(built, prompt, each=[each]) == [output]


def test_steps_with_images_are_counted_apart(vision, built):
    before = built.runner.launches.copy()
    generate(built, vision.prompt("16x16#7", 2), vision.prompt(3), max_tokens=4)
    launches = built.runner.launches - before
    assert launches[Launch.IMAGE] > 0
    assert launches[Launch.NO_GRAPH] >= 2
    assert launches[Launch.REPLAY] == 0


def test_log_probabilities_are_transformers(vision, built):
    prompt = vision.prompt(3, "24x24#31", 4)
    engine = OfflineEngine(built)
    for _ in range(2):  # the second time the prefix is there, which prompt log-probabilities must not skip
        (output,) = engine.generate(
            [prompt.token_ids], images=[prompt.images], max_tokens=1, logprobs=0, prompt_logprobs=0
        )
        theirs = vision.logits(prompt, []).log_softmax(-1)
        tokens = prompt.token_ids + output
        expected = [theirs[place - 1, tokens[place]].item() for place in range(1, len(tokens))]
        ours = [entry.logprob for entry in engine.prompt_logprobs[0] + engine.logprobs[0]]
        assert ours == pytest.approx(expected, abs=1e-3)


def test_a_preemption_in_the_middle_of_an_image_changes_nothing(vision):
    built = vision.build(max_num_batched_tokens=5, block_size=4, num_gpu_blocks_override=16, max_model_len=64)
    cut = []
    preempt = built.scheduler._queues.preempt

    def watch(sequence):
        cut.extend(i for i in sequence.request.images if i.position < sequence.num_computed_tokens < i.end)
        preempt(sequence)

    built.scheduler._queues.preempt = watch
    prompts = [vision.prompt(4, f"32x32#{seed}", 2) for seed in (41, 42, 43)]
    outputs = generate(built, *prompts, max_tokens=40)
    assert cut
    for prompt, output in zip(prompts, outputs, strict=True):
        vision.check(prompt, output)


def test_adapters_change_text_and_leave_images_alone(vision, tmp_path):
    adapter = save_adapter(vision, tmp_path)
    targets = ["q_proj", "v_proj", "embed_tokens"]
    built = vision.build(lora=[f"a={adapter}"], lora_targets=targets, max_loras=1, max_num_batched_tokens=13)
    prompt = vision.prompt(5, "24x24#51", 5)
    base, adapted = generate(built, prompt, prompt, max_tokens=6, adapters=[None, "a"])
    vision.check(prompt, base)
    assert base != adapted
    with merged(vision.reference, adapter):
        vision.check(prompt, adapted)
