"""Random requests for more adapters than there are slots, each token's log-probability compared with `peft`'s.

Used by `test_adapter_copies`. The whole engine runs, on threads of this process, so that a test can change how copies are launched.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from services.generator.llm import LLM, Generation
from tests.generator.adapters.conftest import make_adapter, reference_model
from tests.generator.conftest import save_tiny_llama

NUM_ADAPTERS, NUM_SLOTS, NUM_PLACES = 5, 2, 3
NUM_REQUESTS, NUM_CLIENTS = 48, 6
SETTINGS = {
    "dtype": "float32",
    "max_loras": NUM_SLOTS,
    "max_cpu_loras": NUM_PLACES,
    "lora_max_wait": 0.05,
    "max_lora_rank": 8,
    "max_num_seqs": 4,
    "max_model_len": 128,
    "num_gpu_blocks_override": 128,
    "num_threads": 1,
}

Answer = tuple[str | None, Generation]


def prepare(folder: Path) -> Path:
    """A tiny model in `base`, and below `root` adapters of different ranks."""
    base = save_tiny_llama(folder / "base", eos_token_id=None)
    for number in range(NUM_ADAPTERS):
        make_adapter(base, folder / "root" / f"a{number}", seed=number, r=2 * number + 1 if number < 4 else 8)
    return folder


def churn(folder: Path, device: str, seed: int = 0) -> list[Answer]:
    """Answers to random requests of several clients at once, with the names of their adapters."""
    rng = random.Random(seed)
    names = [None, *(f"a{number}" for number in range(NUM_ADAPTERS))]
    requests = [
        (rng.choice(names), [rng.randrange(250) for _ in range(rng.randint(2, 40))], rng.randint(1, 12))
        for _ in range(NUM_REQUESTS)
    ]
    with LLM(str(folder / "base"), device=device, lora_root=[str(folder / "root")], **SETTINGS) as llm:

        def answer(request: tuple[str | None, list[int], int]) -> Answer:
            name, prompt, count = request
            sampling = {"max_tokens": count, "temperature": 0, "logprobs": 1}
            return name, llm.generate([prompt], sampling, lora=name)[0]

        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            return list(clients.map(answer, requests))


def errors(folder: Path, answers: list[Answer]) -> Iterator[float]:
    """Of each answer, how far the log-probability of any of its tokens is from what `peft` says."""
    names = {name for name, _ in answers}
    models = {name: reference_model(folder / "base", name and folder / "root" / name) for name in names}
    for name, answer in answers:
        prompt, (choice,) = answer.prompt_token_ids, answer.choices
        with torch.inference_mode():
            logits = models[name](torch.tensor([prompt + choice.token_ids])).logits[0, len(prompt) - 1 : -1]
        theirs = torch.log_softmax(logits.double(), dim=-1).gather(1, torch.tensor(choice.token_ids)[:, None])[:, 0]
        ours = torch.tensor([token.logprob.logprob for token in choice.tokens], dtype=torch.float64)
        yield (ours - theirs).abs().max().item()
