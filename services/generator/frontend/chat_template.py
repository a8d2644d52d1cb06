"""Turns a conversation into the prompt that the model was trained on, by the jinja template of its folder.

Called for chat requests. Templates come with models and are not trusted: they run in jinja's immutable sandbox.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequestError

_OWN_NAMES = frozenset({"messages", "add_generation_prompt", "continue_final_message", "tools", "documents"})
"""What the request itself says; no request can set them as variables of the template."""

_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template may raise at a conversation that it was not written for."""

_END_OF_CONTENT = secrets.token_hex(16)
"""Marks in a rendered text where the content of the last message ends; no client can know it."""


class ChatTemplate:
    """The chat template of one model.

    Args:
        source: jinja text as in `tokenizer_config.json`.
        special_tokens: the texts that templates refer to by name, such as `bos_token`.

    Attributes:
        knows_tool_calls: whether it reads the calls of an assistant's message.
        reads_strings: whether it writes content that is a string; some of vision-language models read parts only.
        variables: names that it reads and a request may set.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._special_tokens = special_tokens
        self.knows_tool_calls = "tool_calls" in source
        names = meta.find_undeclared_variables(environment.parse(source))
        self.reads_strings = self._writes(_END_OF_CONTENT) or not self._writes(
            [{"type": "text", "text": _END_OF_CONTENT}]
        )
        self.variables = names - environment.globals.keys() - special_tokens.keys() - _OWN_NAMES

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text for `messages`, each with role and content.

        Args:
            continue_final_message: end the text where the content of the last message ends.
            variables: values for some of the template's own variables.
        Raises:
            InvalidRequestError: the template refuses this conversation, or has no such variable.
        """
        variables = variables or {}
        self._check(variables)
        if continue_final_message:
            return self._render_open(messages, variables)
        return self._render(messages, variables, add_generation_prompt=add_generation_prompt)

    def _render_open(self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        *before, last = messages
        if last["role"] != "assistant" or "tool_calls" in last:
            raise InvalidRequestError(
                "continue_final_message: the last message must be the text of an assistant",
                param="continue_final_message",
            )
        marked = {**last, "content": _marked(last["content"])}
        text, mark, _ = self._render([*before, marked], variables, add_generation_prompt=False).rpartition(
            _END_OF_CONTENT
        )
        if not mark:
            raise InvalidRequestError(
                "continue_final_message: the chat template does not write the last message",
                param="continue_final_message",
            )
        return text.replace(_END_OF_CONTENT, "")

    def _render(
        self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any], *, add_generation_prompt: bool
    ) -> str:
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
                **variables,
            )
        except _TEMPLATE_FAULTS as error:
            raise InvalidRequestError(f"messages: the chat template refuses them: {error}", param="messages") from None

    def _writes(self, content: str | list[dict[str, str]]) -> bool:
        """Whether a user's message of this content can be found in the text; a template may drop what it does not expect."""
        try:
            text = self._render([{"role": "user", "content": content}], {}, add_generation_prompt=True)
        except InvalidRequestError:
            return False
        # Text that was written as the list that it came in is not read.
        return _END_OF_CONTENT in text and "'type'" not in text

    def _check(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if name not in self.variables:
                known = f"it has {', '.join(sorted(self.variables))}" if self.variables else "it has none"
                param = f"chat_template_kwargs.{name[:64]}"
                raise InvalidRequestError(f"{param}: the chat template has no such variable; {known}", param=param)


def _marked(content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    """An assistant's content with a mark at its end."""
    if isinstance(content, str):
        return content + _END_OF_CONTENT
    *before, last = content or [{"type": "text", "text": ""}]
    return [*before, {**last, "text": last["text"] + _END_OF_CONTENT}]


class _GenerationTag(Extension):
    """`{% generation %}`, with which some templates mark the assistant's text for training; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
