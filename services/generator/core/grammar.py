"""What both processes have to know of llguidance: its view of a tokenizer, its limits, and where grammars are compiled.

The API process compiles a grammar to refuse a bad one, the engine to follow it; both must come to the same verdict. A grammar
travels as llguidance's own text. Must not import torch.
"""

import threading
from collections.abc import Collection
from concurrent.futures import Executor, ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.text.tokenizer import Tokenizer

_STACK_BYTES = 256 * 2**20
"""Of the compiling threads. llguidance recurses over rules that name each other, about 3 kB a rule: on an ordinary stack a
grammar of 3000 such rules ends the process. The stack is address space; only what is used takes memory."""


class GrammarsUnsupportedError(Exception):
    """This model's tokenizer cannot be used with grammars; the message says why."""


def make_grammar_tokenizer(tokenizer: Tokenizer, end_token_ids: Collection[int]) -> LLTokenizer:
    """The model's tokens as llguidance sees them; takes about a second for a large vocabulary.

    Args:
        end_token_ids: what may be chosen where a grammar may end.
    Raises:
        GrammarsUnsupportedError: the model has no end token, or llguidance cannot read its tokenizer.
    """
    if not end_token_ids:
        raise GrammarsUnsupportedError("the model has no end token")
    try:
        return LLTokenizer(tokenizer.to_json(), eos_token=sorted(end_token_ids))
    except ValueError as error:
        raise GrammarsUnsupportedError(f"the model's tokenizer cannot be read: {error}") from error


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start of `grammar`, which is in its error state where the grammar is bad. Releases the GIL."""
    # The other limits are llguidance's own: they bound the work of one step to a few tens of milliseconds, but for freaks.
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))


def grammar_threads(count: int) -> Executor:
    """Threads on which any grammar can be compiled."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="grammar")
    all_run = threading.Barrier(count + 1)
    before = threading.stack_size(_STACK_BYTES)  # of threads that start from here on
    try:
        for _ in range(count):
            pool.submit(all_run.wait)
    finally:
        threading.stack_size(before)
    all_run.wait()
    return pool
