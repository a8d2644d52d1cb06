"""Trains the demo model: `python -m examples.vision.train --out FOLDER`.

In two steps, as LLaVA does (Visual Instruction Tuning, arXiv:2304.08485, §4.2), with a tower that knows nothing yet: first the rows
of a picture learn to be the embeddings of its caption, which needs no decoder; then the answers are learnt through the
frozen decoder. Only the tower and the projector change.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import DynamicCache, LlavaForConditionalGeneration, LlavaProcessor

from examples.vision.measure import accuracies
from examples.vision.model import image_rows, make_model, make_processor, new_parts, save_vision
from examples.vision.pictures import SIDE, Picture, digits, draw_shape, shifted

SEED_OF_MEASURED_SHAPES = 1
NUM_MEASURED_SHAPES = 300
VOCABULARY_SAMPLE = 2000
"""Pictures among whose captions every token occurs."""
SHARPNESS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Train, measure, save; answers the exit status."""
    args = _parse(argv)
    torch.manual_seed(args.seed)
    processor = make_processor(args.model, SIDE)
    model = make_model(args.model, processor, SIDE).to(args.device)
    if args.start is not None:
        model.load_state_dict(load_file(args.start / "vision.safetensors"), strict=False)
    learnt, held_out = digits()
    source = _pictures(learnt, random.Random(f"learnt {args.seed}"))
    learn_captions(model, processor, source, args)
    learn_answers(model, processor, source, args)
    round_to_bfloat16(model)
    save_vision(model, processor, args.out)
    rng = random.Random(f"measured {SEED_OF_MEASURED_SHAPES}")
    measured = {"digits": held_out, "shapes": [draw_shape(rng) for _ in range(NUM_MEASURED_SHAPES)]}
    table = accuracies(model, processor, measured)
    (args.out / "figures.json").write_text(json.dumps(table, indent=2) + "\n")
    _say("\n".join(f"{name}: {share:.1%}" for name, share in table.items()))
    return 0


def learn_captions(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, source: Iterator[Picture], args: argparse.Namespace
) -> None:
    """Rows become the embeddings of the caption's tokens, again and again until there are enough of them.

    Each row shall be near to its token's embedding, and nearer to it than to those of all other captions' tokens.
    """
    embedding = model.get_input_embeddings().weight.detach()
    spread = embedding.var()
    known = sorted({token for _ in range(VOCABULARY_SAMPLE) for token in _caption_ids(processor, next(source))})
    places = {token: place for place, token in enumerate(known)}

    def loss(pictures: Sequence[Picture]) -> torch.Tensor:
        rows = image_rows(model, _pixels(processor, pictures, args.device))
        ids = [_caption_ids(processor, picture) for picture in pictures]
        wanted = [places[each[row % len(each)]] for each in ids for row in range(rows.shape[1])]
        distances = torch.cdist(rows.flatten(0, 1), embedding[known]).square() / (
            embedding.shape[1] * spread
        )  # [B * R, K]
        labels = torch.tensor(wanted, device=args.device)
        return functional.cross_entropy(-SHARPNESS * distances, labels) + distances.gather(1, labels[:, None]).mean()

    _learn(model, loss, source, (args.caption_steps, args.caption_batch, args.lr), "captions")


def learn_answers(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, source: Iterator[Picture], args: argparse.Namespace
) -> None:
    """The decoder's tokens of the answer become likely, given picture and question."""
    before, after = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "\0"}]}], add_generation_prompt=True
    ).split(processor.image_token)
    question_end = after.removeprefix("\0")
    decoder, embed = model.model.language_model, model.get_input_embeddings()
    prefix = torch.tensor([processor.tokenizer(before)["input_ids"]], device=args.device)
    with torch.no_grad():
        past = decoder(input_ids=prefix, use_cache=True).past_key_values

    def loss(pictures: Sequence[Picture]) -> torch.Tensor:
        asked = [random.choice(picture.questions) for picture in pictures]
        texts = [processor.tokenizer(question.text + question_end)["input_ids"] for question in asked]
        answers = [processor.tokenizer(question.answer + "<|im_end|>")["input_ids"] for question in asked]
        ids, labels = _padded(texts, answers)
        rows = image_rows(model, _pixels(processor, pictures, args.device))
        inputs = torch.cat([rows, embed(ids.to(args.device))], dim=1)
        cache = DynamicCache([(k.expand(len(ids), -1, -1, -1), v.expand(len(ids), -1, -1, -1)) for k, v, *_ in past])
        hidden = decoder(inputs_embeds=inputs, past_key_values=cache, use_cache=True).last_hidden_state
        is_answer = labels >= 0
        states = hidden[:, rows.shape[1] - 1 : -1][is_answer.to(args.device)]
        return functional.cross_entropy(model.lm_head(states), labels[is_answer].to(args.device))

    _learn(model, loss, source, (args.answer_steps, args.answer_batch, args.lr / 3), "answers")


def round_to_bfloat16(model: LlavaForConditionalGeneration) -> None:
    """What is learnt is kept in half the bytes; the model that is measured is the one that is kept."""
    for part in new_parts(model):
        for parameter in part.parameters():
            parameter.data = parameter.data.to(torch.bfloat16).float()


def _learn(
    model: LlavaForConditionalGeneration,
    loss: Callable[[Sequence[Picture]], torch.Tensor],
    source: Iterator[Picture],
    sizes: tuple[int, int, float],
    what: str,
) -> None:
    """Take steps down `loss`; `sizes` are their number, the pictures of each, and the largest learning rate."""
    num_steps, batch_size, lr = sizes
    parameters = [parameter for part in new_parts(model) for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=num_steps + 1, pct_start=0.1)
    started_at = time.monotonic()
    for step in range(1, num_steps + 1):
        value = loss([next(source) for _ in range(batch_size)])
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == num_steps:
            _say(f"{what}: step {step}/{num_steps}  loss {value.item():.4f}  {time.monotonic() - started_at:.0f} s")


def _pictures(learnt: Sequence[Picture], rng: random.Random) -> Iterator[Picture]:
    """As many digits as shapes, without end."""
    while True:
        yield shifted(rng.choice(learnt), rng)
        yield draw_shape(rng)


def _caption_ids(processor: LlavaProcessor, picture: Picture) -> list[int]:
    ids: list[int] = processor.tokenizer(picture.caption)["input_ids"]
    return ids


def _pixels(processor: LlavaProcessor, pictures: Sequence[Picture], device: str) -> torch.Tensor:
    images = [picture.image for picture in pictures]
    return processor.image_processor(images, return_tensors="pt")["pixel_values"].to(device)


def _padded(texts: Sequence[list[int]], answers: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, L] of question and answer, and labels [B, L]: the answer's ids where they are, -1 elsewhere."""
    longest = max(len(text) + len(answer) for text, answer in zip(texts, answers, strict=True))
    ids, labels = torch.zeros(len(texts), longest, dtype=torch.int64), torch.full((len(texts), longest), -1)
    for row, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        ids[row, : len(text) + len(answer)] = torch.tensor(text + answer)
        labels[row, len(text) : len(text) + len(answer)] = torch.tensor(answer)
    return ids, labels


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.vision.train", description="Train the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights and the figures")
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"), help="the language model")
    parser.add_argument("--start", type=Path, help="folder whose weights to go on from")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--caption-steps", type=int, default=4000)
    parser.add_argument("--caption-batch", type=int, default=64)
    parser.add_argument("--answer-steps", type=int, default=1000)
    parser.add_argument("--answer-batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
