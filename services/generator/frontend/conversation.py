"""Turns the messages of a request into what chat templates read.

Called by `frontend.prompts`. The only place that knows in which form templates expect content and tool calls.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from shared.contracts.content import TextPart
from shared.contracts.conversation import ChatMessage, ToolCall


def image_urls(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """URL of every image, in order, by the name of its part."""
    return {
        f"messages.{index}.content.{place}": part.image_url.url
        for index, message in enumerate(messages)
        for place, part in message.image_parts().items()
    }


def template_messages(
    messages: Sequence[ChatMessage], *, knows_tool_calls: bool, reads_strings: bool = True
) -> list[dict[str, Any]]:
    """Each message as role and content, and what else it has.

    Args:
        reads_strings: whether the template takes a string as content, which messages without images then have; parts otherwise.
        knows_tool_calls: whether the template reads `tool_calls`; where it does not, they become a part of the content, one JSON
            object a line, so that the model sees them.
    """
    return [
        _plain(message, knows_tool_calls=knows_tool_calls, has_string=reads_strings and not message.image_parts())
        for message in messages
    ]


def _plain(message: ChatMessage, *, knows_tool_calls: bool, has_string: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    parts = _parts(message)
    plain: dict[str, Any] = {"role": role}
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    if message.tool_calls:
        if knows_tool_calls:
            plain["tool_calls"] = [_call(call) for call in message.tool_calls]
        else:
            lines = [json.dumps(_call(call)["function"], ensure_ascii=False) for call in message.tool_calls]
            has_text = any(part["text"] for part in parts)
            parts.append(_text_part("\n".join(["", *lines] if has_text else lines)))
    plain["content"] = "".join(part["text"] for part in parts) if has_string else parts
    return plain


def _parts(message: ChatMessage) -> list[dict[str, str]]:
    """Content as templates of vision-language models read it: images in their places, without their URLs."""
    if isinstance(message.content, str):
        return [_text_part(message.content)]
    parts = message.content or []
    return [_text_part(part.text) if isinstance(part, TextPart) else {"type": "image"} for part in parts]


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates expect the arguments as an object, which clients send as a string."""
    arguments = from_json(call.function.arguments or "{}")
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
