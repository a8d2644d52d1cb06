"""Trains a cross-encoder on the embedder's weights and measures it: `python -m examples.reranker.train --out FOLDER`.

Each query is learnt against its own passage and hard negatives of the embedder: softmax cross-entropy over the group, as in
ListNet (Cao et al., Learning to Rank: From Pairwise Approach to Listwise Approach, 2007) with one right passage. The table at
the end compares it with cosine and BM25 on files it has not seen, whatever comes out.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn import functional

from examples.reranker.measure import Benchmark, hard_negatives
from examples.reranker.models import CrossEncoder, Embedder
from examples.reranker.pairs import DEFAULT_PACKAGES, Pair, collect_pairs, split_pairs


def main(argv: Sequence[str] | None = None) -> int:
    """Train, measure, save; answers the exit status."""
    args = _parse(argv)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    split = split_pairs(collect_pairs(args.packages), held_out_share=0.15)
    train, held_out = split.train[: args.max_pairs], split.held_out[: args.max_held_out]
    _say(f"{len(train)} pairs to learn from, {len(held_out)} held out")
    embedder = Embedder(args.model, args.device, args.max_length)
    benchmark = Benchmark(held_out, embedder, args.candidates)
    table = dict(benchmark.baselines())
    negatives = hard_negatives(train, embedder, count=args.pool, skip=args.skip)
    model = CrossEncoder(args.model, args.device, args.max_length, args.rank)
    train_model(model, train, negatives, args)
    table["cross-encoder"] = benchmark.figures(lambda query, passages: model.scores(query, passages).numpy())
    _report(table)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "figures.json").write_text(json.dumps(table, indent=2) + "\n")
    model.save(args.out)
    return 0


def train_model(
    model: CrossEncoder, pairs: Sequence[Pair], negatives: Sequence[Sequence[int]], args: argparse.Namespace
) -> None:
    """Learn `args.epochs` times from all pairs, in groups of one right passage and `args.negatives` wrong ones."""
    parameters = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, weight_decay=0.01)
    order = [place for _ in range(args.epochs) for place in random.sample(range(len(pairs)), len(pairs))]
    batches = [order[start : start + args.batch_size] for start in range(0, len(order), args.batch_size)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=len(batches) + 1, pct_start=0.1)
    started_at = time.monotonic()
    for step, batch in enumerate(batches, start=1):
        model.model.train()
        loss = _loss(model, pairs, negatives, batch, args.negatives)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == len(batches):
            _say(f"step {step}/{len(batches)}  loss {loss.item():.3f}  {time.monotonic() - started_at:.0f} s")


def _loss(
    model: CrossEncoder,
    pairs: Sequence[Pair],
    negatives: Sequence[Sequence[int]],
    batch: Sequence[int],
    num_negatives: int,
) -> torch.Tensor:
    """Cross-entropy of the right passage, which is the first of its group."""
    groups = [[place, *random.choices(negatives[place], k=num_negatives)] for place in batch]
    queries = [pairs[group[0]].query for group in groups for _ in group]
    passages = [pairs[place].passage for group in groups for place in group]
    logits = model.logits(queries, passages).view(len(groups), -1)
    return functional.cross_entropy(logits, torch.zeros(len(groups), dtype=torch.int64, device=logits.device))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.reranker.train", description="Train a cross-encoder.")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the delta, the merged model and the figures"
    )
    parser.add_argument("--model", type=Path, default=Path("models/all-minilm-l6-v2"), help="folder to start from")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--packages", nargs="+", default=list(DEFAULT_PACKAGES), help="whose docstrings to learn from")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="groups in one step")
    parser.add_argument("--negatives", type=int, default=7, help="wrong passages in a group")
    parser.add_argument("--pool", type=int, default=30, help="hard negatives to draw them from")
    parser.add_argument("--skip", type=int, default=1, help="best wrong passages left out, which may be right")
    parser.add_argument("--rank", type=int, default=32, help="of the LoRA delta")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a pair")
    parser.add_argument("--candidates", type=int, default=30, help="best of cosine and of BM25 that are reranked")
    parser.add_argument("--max-pairs", type=int, help="learn from the first so many only")
    parser.add_argument("--max-held-out", type=int, help="measure on the first so many only")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _report(table: dict[str, dict[str, float]]) -> None:
    _say("| ranking | nDCG@10 | MRR |\n|---|---|---|")
    for name, figures in table.items():
        _say(f"| {name} | {figures['ndcg@10']:.4f} | {figures['mrr']:.4f} |")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
