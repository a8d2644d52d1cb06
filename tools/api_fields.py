"""`python -m tools.api_fields`: writes `docs/api-fields.md`, the table of every field that a request may have, from the contracts.

`make docs` runs it; `make lint` runs it with --check, which writes nothing and fails where the page is out of date.
Knows pydantic's JSON schemas and the docstrings of the contracts, nothing of what fields do.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from shared.contracts.adapters import LoadAdapterRequest, PinAdapterRequest, UnloadAdapterRequest
from shared.contracts.chat import ChatRequest
from shared.contracts.cohere_embed import CohereEmbedRequest
from shared.contracts.completions import CompletionRequest
from shared.contracts.content import ImagePart, ImageUrl, TextPart
from shared.contracts.conversation import ChatMessage, FunctionCall, ToolCall
from shared.contracts.embeddings import EmbeddingRequest
from shared.contracts.fields import Only, Standing, standing
from shared.contracts.generation import StreamOptions
from shared.contracts.rerank import RerankDocument, RerankRequest, TeiRerankRequest
from shared.contracts.score import ClassifyRequest, ScoreRequest
from shared.contracts.structured import JsonSchema, ResponseFormat, StructuredOutputs
from shared.contracts.tokenize import DetokenizeRequest, TokenizeRequest
from shared.contracts.wire import WireModel
from tools.source_files import ROOT

PAGE = Path("docs/api-fields.md")
ENDPOINTS: dict[str, type[WireModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/load_lora_adapter": LoadAdapterRequest,
    "/v1/unload_lora_adapter": UnloadAdapterRequest,
    "/v1/pin_lora_adapter": PinAdapterRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/embed, /v2/embed": CohereEmbedRequest,
    "/v1/rerank, /rerank, /v2/rerank": RerankRequest,
    "/rerank, /v1/rerank, /v2/rerank": TeiRerankRequest,
    "/score": ScoreRequest,
    "/classify": ClassifyRequest,
}
OBJECTS: tuple[type[WireModel], ...] = (
    ChatMessage,
    TextPart,
    ImagePart,
    ImageUrl,
    ToolCall,
    FunctionCall,
    StreamOptions,
    ResponseFormat,
    JsonSchema,
    StructuredOutputs,
    RerankDocument,
)
HEAD = """# Fields of the API

Written by `make docs` from `shared/contracts`; do not edit. Each field of a request's body stands in one of three lists:

- **supported**: it does what it says;
- **harmless**: its type is checked, and it changes no answer;
- **refused**: a 400 that names it, unless it is left out, `null` or one of the values in the note.

`null` is the default everywhere but in a required field. Numbers are numbers: `true` and `"3"` are not. A field that is not listed
is a 400 too, unless the generator runs with `--ignore-unknown-fields`, which changes nothing about those that are listed.
"""
_ATTRIBUTE = re.compile(r" {4}(\w+): (.+)")
_ORDER = list(Standing)
_NO_LIMIT = 2**31 - 1
"""A limit from here on only keeps numbers inside machine words."""


class _Row(NamedTuple):
    kind: Standing
    name: str
    values: str
    note: str


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the page, or check it; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.api_fields", description="Writes the table of API fields.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is out of date")
    options = parser.parse_args(arguments)
    path = root / PAGE
    text = page()
    if not options.check:
        path.write_text(text, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is out of date: run `make docs`")
        return 1
    return 0


def page() -> str:
    """The whole page."""
    endpoints = [_section(path, contract) for path, contract in ENDPOINTS.items()]
    objects = [_table(f"### {contract.__name__}", contract) for contract in OBJECTS]
    return "\n".join([HEAD, *endpoints, "## Objects inside", "", *objects])


def _section(path: str, contract: type[WireModel]) -> str:
    paths = ", ".join(f"`{part}`" for part in path.split(", "))
    return _table(f"## POST {paths}", contract)


def _table(title: str, contract: type[WireModel]) -> str:
    rows = sorted(_rows(contract), key=lambda row: _ORDER.index(row.kind))
    lines = [f"| `{row.name}` | {row.kind} | {row.values} | {row.note} |" for row in rows]
    return "\n".join([title, "", "| field | list | values | note |", "|---|---|---|---|", *lines, ""])


def _rows(contract: type[WireModel]) -> Iterator[_Row]:
    schema = contract.model_json_schema()
    notes = _notes(contract)
    for name, field in contract.model_fields.items():
        required = ["required"] if field.is_required() else []
        note = "; ".join([*required, *_neutral(field), *notes.get(name, [])])
        key = field.alias or name
        yield _Row(standing(field.metadata), key, _values(schema["properties"][key]), note)


def _neutral(field: FieldInfo) -> list[str]:
    """The values at which a refused field is taken."""
    markers = [item for item in field.metadata if isinstance(item, Only)]
    return [f"`{json.dumps(value)}` is taken" for marker in markers for value in marker.neutral]


def _notes(contract: type[WireModel]) -> dict[str, list[str]]:
    """What the docstrings of the contract and of its bases say under Attributes."""
    notes: dict[str, list[str]] = {}
    for base in reversed(contract.__mro__):
        name = None
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for line in attributes.splitlines():
            if found := _ATTRIBUTE.match(line):
                name = found[1]
                notes[name] = [found[2].removesuffix(".")]
            elif name is not None:
                notes[name] = [f"{notes[name][0]} {line.strip().removesuffix('.')}"]
    return notes


def _values(schema: Mapping[str, Any]) -> str:
    """The JSON type of a value, with its limits, in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        parts = [_values(part) for part in alternatives if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any value")
    if kind == "array":
        item = _values(schema["items"])
        return f"list of {f'({item})' if ' ' in item else item}{_limits(schema, 'Items', ' entries')}"
    if kind == "string":
        return f"string{_limits(schema, 'Length', ' characters')}"
    return f"{kind}{_limits(schema, 'imum')}"


def _limits(schema: Mapping[str, Any], suffix: str, unit: str = "") -> str:
    limits = (("≥", f"min{suffix}"), (">", "exclusiveMinimum"), ("≤", f"max{suffix}"))
    given = [(sign, schema[key]) for sign, key in limits if abs(schema.get(key, _NO_LIMIT)) < _NO_LIMIT]
    return f", {' and '.join(f'{sign} {value}' for sign, value in given)}{unit}" if given else ""


if __name__ == "__main__":
    sys.exit(main())
