"""Trains a cross-encoder on the embedder's weights and measures it: `python -m examples.reranker.train --corpus FILE --out FOLDER`.

Learns from the pairs of `corpus`, but for those of 8 % of its documents. The tables at the end compare the cross-encoder with
cosine and BM25 on those, source by source, and on the handbook of `examples.rag`, whatever comes out.
"""

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from examples.reranker.handbook import QUESTIONS, answers_in, handbook_passages
from examples.reranker.learning import Lessons, Plan, learn
from examples.reranker.measure import Asked, Benchmark, Figures, asked_of_pairs
from examples.reranker.models import CrossEncoder, Embedder
from examples.reranker.negatives import Counts, hard_negatives
from examples.reranker.pairs import Pair, read_pairs, split_pairs

_HELD_OUT_SHARE = 0.08
_NUM_CANDIDATES = 30
_NUM_WATCHED = 300
_STEPS_BETWEEN_LOOKS = 400


def main(argv: Sequence[str] | None = None) -> int:
    """Train, measure, save; answers the exit status."""
    args = _parse(argv)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    say = _clock()
    split = split_pairs(read_pairs(args.corpus)[:: args.every], _HELD_OUT_SHARE)
    say(f"{len(split.train)} pairs to learn from, {len(split.held_out)} held out")
    embedder = Embedder(args.model, args.device, args.max_length)
    benchmarks = {
        "held out": _held_out(split.held_out, args.held_out_per_source, embedder),
        "handbook": _handbook(embedder),
    }
    watched = _held_out(split.held_out, _NUM_WATCHED, embedder, by_source=False)
    say("candidates found")
    model = CrossEncoder(args.model, args.device, args.max_length, args.rank)
    lessons = _lessons(split.train, embedder, model)
    say(f"{lessons.negatives.shape[1]} wrong passages found for each query")
    num_steps = learn(model, lessons, _plan(args), lambda step, loss: _look(step, loss, model, watched, say))
    model.round_to_half()
    say(f"{num_steps} steps done")
    tables = {
        name: {**benchmark.baselines(), "cross-encoder": benchmark.figures(model)}
        for name, benchmark in benchmarks.items()
    }
    for name, table in tables.items():
        _report(name, table)
    args.out.mkdir(parents=True, exist_ok=True)
    figures = {"steps": num_steps, "pairs": len(split.train), **tables}
    (args.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    model.save(args.out / "delta")
    say("saved")
    return 0


def _held_out(pairs: Sequence[Pair], count: int, embedder: Embedder, *, by_source: bool = True) -> Benchmark:
    """`count` queries of each source, or of all together."""
    places_of: defaultdict[str, list[int]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        places_of[pair.source if by_source else ""].append(place)
    chance = random.Random(0)
    chosen = [
        place for _, all_of in sorted(places_of.items()) for place in chance.sample(all_of, min(count, len(all_of)))
    ]
    return Benchmark(asked_of_pairs(pairs, chosen), [pair.passage for pair in pairs], embedder, _NUM_CANDIDATES)


def _handbook(embedder: Embedder) -> Benchmark:
    passages = handbook_passages()
    asked = [
        Asked(question.text, answer, frozenset(), "handbook")
        for question, answer in zip(QUESTIONS, answers_in(passages), strict=True)
    ]
    return Benchmark(asked, [passage.titled_text for passage in passages], embedder, _NUM_CANDIDATES)


def _lessons(pairs: Sequence[Pair], embedder: Embedder, model: CrossEncoder) -> Lessons:
    queries, passages = [pair.query for pair in pairs], [pair.passage for pair in pairs]
    query_vectors, passage_vectors = embedder.vectors(queries), embedder.vectors(passages)
    negatives = hard_negatives(pairs, query_vectors, passage_vectors, Counts())
    return Lessons(
        model.table(queries, are_queries=True),
        model.table(passages, are_queries=False),
        _cosines(query_vectors, passage_vectors, negatives),
        negatives,
    )


def _cosines(queries: Tensor, passages: Tensor, negatives: Tensor) -> Tensor:
    """[pairs, 1 + pool] on the CPU: of each query with its own passage, then with the wrong ones."""
    groups = torch.cat([torch.arange(len(negatives))[:, None], negatives], dim=1)
    rows = [
        torch.einsum("nh,nph->np", queries[places], passages[groups[places].to(passages.device)]).cpu()
        for places in torch.arange(len(groups)).split(1024)
    ]
    return torch.cat(rows)


def _look(step: int, loss: float, model: CrossEncoder, watched: Benchmark, say: Callable[[str], None]) -> None:
    line = f"step {step}  loss {loss:.3f}"
    if step % _STEPS_BETWEEN_LOOKS == 0:
        line += f"  MRR of {_NUM_WATCHED} held-out queries {watched.figures(model)['all']['mrr']:.4f}"
    say(line)


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        num_steps=args.steps,
        max_minutes=args.minutes,
        num_groups=args.groups,
        num_negatives=args.negatives,
        learning_rate=args.lr,
        cosine_share=args.cosine_share,
        seed=args.seed,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.reranker.train", description="Train a cross-encoder.")
    parser.add_argument("--corpus", type=Path, required=True, help="what `python -m examples.reranker.corpus` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the delta and the figures")
    parser.add_argument("--model", type=Path, default=Path("models/all-minilm-l6-v2"), help="folder to start from")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--minutes", type=float, default=60.0, help="end the steps by then, however many are done")
    parser.add_argument("--groups", type=int, default=64, help="queries of one step")
    parser.add_argument("--negatives", type=int, default=9, help="wrong passages for a query in one step")
    parser.add_argument("--rank", type=int, default=32, help="of the LoRA delta")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--cosine-share", type=float, default=0.2, help="of the target: what the embedder thinks")
    parser.add_argument("--max-length", type=int, default=192, help="tokens of a pair")
    parser.add_argument("--every", type=int, default=1, help="take only every so many-th pair of the corpus")
    parser.add_argument("--held-out-per-source", type=int, default=100, help="queries that are measured")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _report(name: str, table: Mapping[str, Figures]) -> None:
    lines = [f"\n| {name} | " + " | ".join(f"{method} nDCG@10 | MRR" for method in table) + " |"]
    lines.append("|---" * (1 + 2 * len(table)) + "|")
    for group in table["cosine"]:
        cells = [f"{figure:.3f}" for figures in table.values() for figure in figures[group].values()]
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


def _clock() -> Callable[[str], None]:
    started_at = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started_at:6.1f} s  {line}\n")
        sys.stdout.flush()

    return say


if __name__ == "__main__":
    raise SystemExit(main())
