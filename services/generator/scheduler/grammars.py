"""Ledger of grammars: which request's output must match what, and how far its committed tokens have come.

Called by the Scheduler only. Owns one matcher per request with a grammar; it moves with the tokens that are committed, so what a
step samples can be restricted only when all steps before it are committed. Preemption changes nothing here: a recomputed
sequence samples nothing anew. Must not import torch.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from services.generator.core.grammar import compile_grammar
from services.generator.core.plan import MASK_BITS, IntArray
from shared.errors import InternalError
from shared.observability.logging import get_logger

RequestKey = tuple[str, int]
"""(frontend_id, request_id)"""
log = get_logger(__name__)

NO_GRAMMAR = "%%"
"""Text that no matcher can follow: its error state stands for any failure to compile."""

MAX_COMPILED = 128
"""Compiled grammars that are kept for later requests."""
ALL = -1
"""A word of a mask that allows its 32 ids."""


class GrammarManager:
    """Matchers of all requests with a grammar.

    Args:
        tokenizer: the model's tokens.
        num_token_ids: ids below this are tokens of the tokenizer; the model may have more logits, which must not be chosen.
        vocab_size: width of the model's logits.
        threads: where grammars are compiled, which may take seconds.
    """

    def __init__(self, tokenizer: LLTokenizer, num_token_ids: int, vocab_size: int, threads: Executor) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        self._executor = LLExecutor()
        self._width = -(-tokenizer.vocab_size // MASK_BITS)
        self._known = _first_ids(min(num_token_ids, vocab_size), vocab_size)
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._preparing: dict[RequestKey, Future[LLMatcher]] = {}
        self._matchers: dict[RequestKey, LLMatcher] = {}

    def begin(self, key: RequestKey, grammar: str) -> None:
        """Follow `grammar` with a request, which may run once `is_ready`."""
        future = self._compiled.get(grammar)
        if future is None:
            future = self._threads.submit(compile_grammar, self._tokenizer, grammar)
            self._compiled[grammar] = future
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        self._preparing[key] = future

    def is_ready(self, key: RequestKey) -> bool:
        """Whether the request's grammar is compiled; one that cannot be is ready too, and fails at its first token."""
        future = self._preparing.get(key)
        if future is not None and future.done():
            del self._preparing[key]
            if future.exception() is None:
                self._matchers[key] = future.result().deep_copy()
            else:
                log.error("grammar_failed", exc_info=future.exception())
                self._matchers[key] = compile_grammar(self._tokenizer, NO_GRAMMAR)
        return key not in self._preparing

    def wait(self, timeout_s: float) -> None:
        """Wait until some grammar is compiled."""
        wait(self._preparing.values(), timeout_s, FIRST_COMPLETED)

    def masks(self, keys: Sequence[RequestKey | None]) -> IntArray:
        """Bit masks [N, ceil(V / 32)] of the ids that may come next; all ids for None, which stands for no grammar."""
        masks = np.full((len(keys), len(self._known)), ALL, np.int32)
        rows = [row for row, key in enumerate(keys) if key is not None]
        if rows:  # there are none where all have ended while the step was on its way
            found = np.zeros((len(rows), self._width), np.int32)
            matchers = [self._matchers[key] for key in keys if key is not None]
            fill_next_token_bitmask_par(self._executor, [(m, i) for i, m in enumerate(matchers)], found)
            num_words = min(self._width, len(self._known))
            masks[rows] = 0
            masks[rows, :num_words] = found[:, :num_words] & self._known[:num_words]
        return masks

    def accept(self, key: RequestKey, token_id: int) -> bool:
        """Move on by a committed token; False where the grammar does not go on so, or is too complex to be followed."""
        matcher = self._matchers[key]
        return not matcher.is_error() and matcher.consume_token(token_id)  # an end token is taken in spite of an error

    def end(self, key: RequestKey) -> None:
        """Forget a request."""
        self._preparing.pop(key, None)
        self._matchers.pop(key, None)

    def check_integrity(self, keys: Collection[RequestKey]) -> None:
        """Raise InternalError unless exactly the requests `keys` are followed."""
        if sorted([*self._preparing, *self._matchers]) != sorted(keys):
            raise InternalError("a grammar is lost or was not forgotten; this is a bug")


def _first_ids(count: int, vocab_size: int) -> IntArray:
    """A mask of the ids below `count`."""
    bits = np.zeros(-(-vocab_size // MASK_BITS) * MASK_BITS, np.uint8)
    bits[:count] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
