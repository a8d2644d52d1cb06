"""Turns `response_format` and `structured_outputs` into a grammar that the engine follows, and refuses bad ones by name.

Called by the API routes. Grammars are compiled here only to be checked, off the event loop, and the verdicts are kept; the
engine compiles for itself. Limits, so that no request can hold up the others: the size of a grammar, llguidance's own limits, the
size of divisors, and the time to compile. A thread that takes longer than that is left to end by itself.
"""

import asyncio
import json
import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from fractions import Fraction

from llguidance import GrammarFormat, LLTokenizer, grammar_from

from services.generator.core.grammar import (
    GrammarsUnsupportedError,
    compile_grammar,
    grammar_threads,
    make_grammar_tokenizer,
)
from services.generator.frontend.model_card import ModelCard
from shared.contracts.generation import GenerationFields
from shared.contracts.structured import ResponseFormat, StructuredOutputs
from shared.errors import InvalidRequestError, OverloadedError
from shared.text.tokenizer import Tokenizer

MAX_GRAMMAR_CHARS = 32_768
"""A schema, expression or grammar as text; compiling may take time that grows with the square of it."""
MAX_DIVISOR = 10_000
"""Common multiple of a schema's `multipleOf`, in units of their common fraction: its automaton has that many states."""
COMPILE_S = 5.0
MAX_VERDICTS = 1024
NUM_THREADS = 2
CONFLICTING = ("allowed_token_ids", "bad_words", "ignore_eos", "min_tokens")
"""Fields that may forbid what the grammar demands."""
ANY_OBJECT = '{"type":"object"}'
_MULTIPLE_OF = re.compile(r'"multipleOf":\s*([0-9.eE+-]+)')
_MAX_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer must match: `param` is the field that says so, `text` is in `format` as llguidance names it."""

    param: str
    format: GrammarFormat
    text: str


class GrammarReader:
    """Reads the fields of structured output for one model."""

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        self._threads = grammar_threads(NUM_THREADS)
        self._tokens = self._threads.submit(make_grammar_tokenizer, tokenizer, card.eos_token_ids)
        self._verdicts: OrderedDict[str, str] = OrderedDict()

    async def read(self, fields: GenerationFields) -> str | None:
        """The grammar as the engine takes it, or None where any text will do.

        Raises:
            InvalidRequestError: the grammar is bad, too large or too slow to compile, the model or another field of the request
                does not go with it; names the field.
            OverloadedError: others keep the compiling threads busy.
        """
        wanted = _wanted(fields)
        if wanted is None:
            return None
        for name in CONFLICTING:
            if getattr(fields, name):
                raise InvalidRequestError(f"{name}: not allowed together with {wanted.param}", param=name)
        grammar = _grammar(wanted)
        fault = await self._fault(wanted, grammar)
        if fault:
            raise InvalidRequestError(f"{wanted.param}: {fault}", param=wanted.param)
        return grammar

    async def _fault(self, wanted: Wanted, grammar: str) -> str:
        """What is wrong with a grammar, in llguidance's words; empty where nothing is."""
        fault = self._verdicts.get(grammar)
        if fault is None:
            fault = await self._compile(await self._load(wanted.param), grammar, wanted.param)
            self._verdicts[grammar] = fault
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(grammar)
        return fault

    async def _compile(self, tokens: LLTokenizer, grammar: str, param: str) -> str:
        """The verdict on a grammar; that it took too long is none, since that may be the machine's fault."""
        has_begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def check() -> str:
            loop.call_soon_threadsafe(has_begun.set)
            return _check(tokens, grammar)

        checking = self._threads.submit(check)
        try:
            await asyncio.wait_for(has_begun.wait(), COMPILE_S)
        except TimeoutError:
            raise OverloadedError("Too many grammars are being compiled", retry_after_s=COMPILE_S) from None
        finally:
            if not has_begun.is_set():
                checking.cancel()  # nobody waits for it any more
        try:
            return await asyncio.wait_for(asyncio.wrap_future(checking), COMPILE_S)
        except TimeoutError:
            raise InvalidRequestError(f"{param}: takes longer than {COMPILE_S:g} s to compile", param=param) from None

    async def _load(self, param: str) -> LLTokenizer:
        """The model's tokens, once they are read."""
        try:
            return await asyncio.shield(asyncio.wrap_future(self._tokens))
        except GrammarsUnsupportedError as error:
            raise InvalidRequestError(f"{param}: not supported with this model: {error}", param=param) from error


def _check(tokens: LLTokenizer, grammar: str) -> str:
    """Compile a grammar and take a first step, at which those that are too complex most often fail."""
    matcher = compile_grammar(tokens, grammar)
    if not matcher.is_error():
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        lowest_bit = mask & -mask
        if lowest_bit:
            matcher.consume_token(lowest_bit.bit_length() - 1)
    return matcher.get_error().strip()[:_MAX_MESSAGE]


def _wanted(fields: GenerationFields) -> Wanted | None:
    if fields.response_format is not None and fields.structured_outputs is not None:
        raise InvalidRequestError(
            "structured_outputs: not allowed together with response_format", param="structured_outputs"
        )
    if fields.structured_outputs is not None:
        return _wanted_output(fields.structured_outputs)
    return None if fields.response_format is None else _wanted_format(fields.response_format)


def _wanted_format(wanted: ResponseFormat) -> Wanted | None:
    if wanted.type == "text":
        return None
    if wanted.json_schema is None:
        return Wanted("response_format", "json_schema", ANY_OBJECT)
    param = "response_format.json_schema.schema"
    return Wanted(param, "json_schema", _as_json(wanted.json_schema.schema_, param))


def _wanted_output(wanted: StructuredOutputs) -> Wanted:
    if wanted.regex is not None:
        return Wanted("structured_outputs.regex", "regex", wanted.regex)
    if wanted.choice is not None:
        return Wanted("structured_outputs.choice", "choice", _as_json(wanted.choice, "structured_outputs.choice"))
    if wanted.grammar is not None:
        return Wanted("structured_outputs.grammar", "lark", wanted.grammar)
    return Wanted("structured_outputs.json", "json_schema", _as_json(wanted.json_, "structured_outputs.json"))


def _as_json(value: object, param: str) -> str:
    """A value as JSON text, or a text that is JSON already in the same spelling."""
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, allow_nan=False, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{param}: is not JSON: {str(error)[:_MAX_MESSAGE]}", param=param) from error


def _grammar(wanted: Wanted) -> str:
    """In llguidance's notation, once it is small enough to be looked at."""
    if len(wanted.text) > MAX_GRAMMAR_CHARS:
        fault = f"is {len(wanted.text)} characters long, {MAX_GRAMMAR_CHARS} at most"
    elif wanted.format == "lark" and "%json" in wanted.text:
        fault = "%json is not supported; use structured_outputs.json"
    elif wanted.format == "json_schema" and _common_divisor(wanted.text) > MAX_DIVISOR:
        fault = f"multipleOf has a common multiple of more than {MAX_DIVISOR} steps"
    else:
        try:
            return grammar_from(wanted.format, wanted.text)
        except ValueError as error:
            fault = str(error)[:_MAX_MESSAGE]
    raise InvalidRequestError(f"{wanted.param}: {fault}", param=wanted.param)


def _common_divisor(schema: str) -> int:
    """Least common multiple of all `multipleOf` of a schema, in units of their common fraction."""
    steps = [Fraction(step) for step in _MULTIPLE_OF.findall(schema)]
    unit = math.lcm(*(step.denominator for step in steps))
    return math.lcm(*(int(step * unit) for step in steps))
