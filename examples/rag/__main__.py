"""Answer questions from a folder of documents: ingest, embed, search, rerank, and a streamed answer with its sources.

Run as `python -m examples.rag` with the gateway up. Owns the command line and what is printed; each step's work is in
the file named for it. Imports nothing of the services: it speaks HTTP, as any client would.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import openai

from examples.rag.answer import AnswerError, Citation, build_messages, cite, stream_answer
from examples.rag.collection import CollectionError, Passage, read_collection
from examples.rag.gateway import TASKS, GatewayError, check_ready, connect, models_by_task
from examples.rag.retrieval import Vector, embed, rerank, search

DEFAULT_COLLECTION = Path(__file__).parent / "collection"
DEFAULT_QUESTIONS = (
    "What do three long blasts on the horn mean?",
    "How much does a day ticket cost?",
    "How often does comet Verrall-Asher return?",
    "How many books does the library hold?",
)


@dataclass(frozen=True)
class Index:
    """What ingesting leaves behind: the passages and one unit vector for each."""

    passages: list[Passage]
    vectors: list[Vector]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; returns the process's exit status: 0, or 1 with a message on stderr."""
    args = _parse(argv)
    try:
        with connect(args.base_url, args.api_key) as client:
            _run(client, args.collection, args.question or DEFAULT_QUESTIONS)
    except (GatewayError, CollectionError, AnswerError) as error:
        return _fail(str(error))
    except openai.OpenAIError as error:
        return _fail(f"the gateway answered with an error: {error}")
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.rag", description="Ask a folder of documents.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="the gateway (default: %(default)s)")
    parser.add_argument("--api-key", default="none", help="only needed if the gateway was started with one")
    parser.add_argument("--collection", type=Path, default=DEFAULT_COLLECTION, help="folder of .md and .txt files")
    parser.add_argument("--question", action="append", help="what to ask; may be given several times")
    return parser.parse_args(argv)


def _run(client: openai.OpenAI, folder: Path, questions: Sequence[str]) -> None:
    check_ready(client)
    models = models_by_task(client)
    _print_row("models", " · ".join(f"{task}: {models[task]}" for task in TASKS))
    index = _ingest(client, models["embed"], folder)
    for question in questions:
        _ask(client, models, index, question)


def _ingest(client: openai.OpenAI, model: str, folder: Path) -> Index:
    started = time.perf_counter()
    passages = read_collection(folder)
    vectors = embed(client, model, [passage.titled_text for passage in passages])
    num_files = len({passage.file for passage in passages})
    _print_row("ingested", f"{len(passages)} passages of {num_files} documents in {_since(started)}")
    return Index(passages, vectors)


def _ask(client: openai.OpenAI, models: dict[str, str], index: Index, question: str) -> None:
    print()
    _print_row("question", question)
    started = time.perf_counter()
    found = search(embed(client, models["embed"], [question])[0], index.vectors, index.passages)
    _print_row("retrieved", f"{len(found)} of {len(index.passages)} passages in {_since(started)}")
    started = time.perf_counter()
    hits = rerank(client, models["rerank"], question, found)
    _print_row("reranked", f"{len(hits)} of {len(found)} passages in {_since(started)}")
    started = time.perf_counter()
    answer = _print_stream(stream_answer(client, models["generate"], build_messages(question, hits)))
    _print_row("answered", f"{len(answer.split())} words in {_since(started)}")
    _print_sources(cite(question, answer, hits))


def _print_stream(pieces: Iterable[str]) -> str:
    print(f"{'answer':<11}", end="", flush=True)
    answer = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        answer += piece
    print()
    return answer


def _print_sources(citations: Sequence[Citation]) -> None:
    for label, is_supporting in (("cited", True), ("also read", False)):
        for citation in citations:
            if citation.is_supporting is is_supporting:
                _print_row(label, _describe(citation))
    if not any(citation.is_supporting for citation in citations):
        _print_row("cited", "nothing: no passage supports this answer")


def _describe(citation: Citation) -> str:
    hit = citation.hit
    scores = f"rerank {hit.relevance:.3f}, cosine {hit.cosine:.3f}, overlap {citation.support:.0%}"
    return f"[{citation.number}] {hit.passage.title} ({hit.passage.file}) · {scores}"


def _print_row(label: str, text: str) -> None:
    print(f"{label:<11}{text}", flush=True)


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.2f} s"


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
