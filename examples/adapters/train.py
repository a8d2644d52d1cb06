"""Train the two demo adapters: the base model answers simple questions, its answers are rewritten, an adapter learns to answer so.

Run as `python -m examples.adapters.train`; needs `torch`, `transformers` and `peft`, and nothing from a network. Owns the command
line, the training and what is printed. How often an adapter keeps its manner is measured on questions that it has not seen.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.adapters.manners import MANNERS, Manner, first_sentence
from examples.adapters.questions import held_out_questions, training_questions

HERE = Path(__file__).parent
MAX_PLAIN_TOKENS, MAX_ANSWER_TOKENS = 48, 128
"""A rewritten answer takes more tokens than a plain one."""
GENERATED_AT_ONCE = 32
NOT_LEARNED = -100
"""Label of tokens that the loss leaves out."""


@dataclass(frozen=True)
class Setup:
    """The base model and how adapters are trained on it."""

    model: Any
    tokenizer: Any
    options: argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and judge every adapter; answers the exit code."""
    options = _parse(arguments)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).to(options.device).eval()
    setup = Setup(model, tokenizer, options)
    questions, held_out = training_questions()[: options.questions], held_out_questions()[: options.questions]
    plain = [first_sentence(answer) for answer in generate(setup, questions, MAX_PLAIN_TOKENS)]
    lessons = [(question, answer) for question, answer in zip(questions, plain, strict=True) if answer]
    print(f"{len(lessons)} of {len(questions)} answers of the base model are used")
    baseline = generate(setup, held_out, MAX_ANSWER_TOKENS)
    for manner in MANNERS:
        print(f"{manner.name}: kept by {_rate(manner, baseline)} answers of the base model")
        adapted = train(setup, [(question, manner.rewrite(answer)) for question, answer in lessons])
        _judge(Setup(adapted, tokenizer, options), manner, held_out)
        _save(adapted, options.out / manner.name)
        adapted.unload()
    return 0


def train(setup: Setup, lessons: Sequence[tuple[str, str]]) -> Any:
    """An adapter that answers as the lessons do, on the base model; its values are those that bf16 can hold."""
    options = setup.options
    torch.manual_seed(0)
    targets = list(options.targets)
    config = LoraConfig(task_type="CAUSAL_LM", r=options.rank, lora_alpha=2 * options.rank, target_modules=targets)
    adapted = get_peft_model(setup.model, config)
    weights = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.learning_rate, total_steps=options.steps)
    order = torch.Generator().manual_seed(0)
    for step in range(options.steps):
        chosen = torch.randint(len(lessons), (options.batch_size,), generator=order).tolist()
        loss = adapted(**_example(setup, [lessons[index] for index in chosen])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        for weight in weights:
            weight.copy_(weight.bfloat16())
    return adapted.eval()


def generate(setup: Setup, questions: Sequence[str], max_tokens: int) -> list[str]:
    """The model's own answers, greedy."""
    starts = range(0, len(questions), GENERATED_AT_ONCE)
    batches = (questions[start : start + GENERATED_AT_ONCE] for start in starts)
    return [answer for batch in batches for answer in _generate(setup, batch, max_tokens)]


def _generate(setup: Setup, questions: Sequence[str], max_tokens: int) -> Iterator[str]:
    prompts = setup.tokenizer([_prompt(setup, question) for question in questions], return_tensors="pt", padding=True)
    prompts = prompts.to(setup.options.device)
    with torch.inference_mode():
        tokens = setup.model.generate(**prompts, do_sample=False, max_new_tokens=max_tokens)
    for answer in tokens[:, prompts["input_ids"].shape[1] :]:
        yield setup.tokenizer.decode(answer, skip_special_tokens=True)


def _prompt(setup: Setup, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    prompt: str = setup.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompt


def _example(setup: Setup, lessons: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """A batch, padded at the left; only answers and their ends are learned."""
    tokenizer = setup.tokenizer
    prompts = [tokenizer(_prompt(setup, question))["input_ids"] for question, _ in lessons]
    answers = [tokenizer(answer + tokenizer.eos_token)["input_ids"] for _, answer in lessons]
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    tokens = torch.full((len(lessons), longest), tokenizer.pad_token_id)
    mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, NOT_LEARNED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        start = longest - len(prompt) - len(answer)
        tokens[row, start:] = torch.tensor(prompt + answer)
        mask[row, start:] = 1
        labels[row, start + len(prompt) :] = torch.tensor(answer)
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return {name: tensor.to(setup.options.device) for name, tensor in batch.items()}


def _judge(setup: Setup, manner: Manner, questions: Sequence[str]) -> None:
    answers = generate(setup, questions, MAX_ANSWER_TOKENS)
    print(f"{manner.name}: kept by {_rate(manner, answers)} answers of the adapter")
    for question, answer in list(zip(questions, answers, strict=True))[:8]:
        print(f"  {question} -> {answer!r}")


def _rate(manner: Manner, answers: Sequence[str]) -> str:
    return f"{sum(manner.is_kept_by(answer) for answer in answers)} of {len(answers)}"


def _save(adapted: Any, folder: Path) -> None:
    """A PEFT folder: configuration and weights in bf16, which lose nothing there."""
    config = adapted.peft_config["default"]
    config.base_model_name_or_path = Path(config.base_model_name_or_path).name
    weights = (weight for weight in adapted.parameters() if weight.requires_grad)
    for weight in weights:
        weight.data = weight.data.bfloat16()
    adapted.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    file = folder / "adapter_model.safetensors"
    file.chmod(0o644)  # a service may run as another user than the one who trained
    print(f"  {folder.name}: {file.stat().st_size} bytes")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.adapters.train", description="Train the two demo adapters."
    )
    parser.add_argument(
        "--model", type=Path, default=Path("models/smollm2-135m-instruct"), help="(default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="gets a folder per adapter (default: beside this file)")
    parser.add_argument("--device", default="cpu", help="where to train, cpu or cuda (default: %(default)s)")
    parser.add_argument("--targets", nargs="+", default=["v_proj", "o_proj"], help="modules (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="(default: %(default)s)")
    parser.add_argument("--questions", type=int, default=None, help="use only so many, to try the program out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
