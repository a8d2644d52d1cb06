"""What every kind of document is read into: sections, each a heading with the paragraphs below it.

Made by `markup`, `manuals` and `dictionaries`, read by `queries`. Knows no file format.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BLANKS = re.compile(r"\s+")
_NUMBERING = re.compile(
    r"^(?:(?:chapter|appendix|section|part)\s+)?(?:\d+(?:\.\d+)*\.?|[A-Z](?:\.\d+)+\.?|[A-Z]\.)\s+(?=\S)|[¶#]$",
    re.IGNORECASE,
)
_EMPTY_HEADINGS = frozenset({
    "navigation", "contents", "table of contents", "name", "version", "synopsis", "description", "see also", "author",
    "authors", "copyright", "license", "index", "history", "bugs", "notes", "note", "examples", "example", "summary",
    "directives", "introduction", "overview", "abstract", "tip", "warning", "caution", "important", "returns",
    "related topics", "reporting bugs", "bugfix checklist", "topics", "comments", "search", "parameters", "reporting",
    "git", "credits", "links",
})  # fmt: skip


@dataclass(frozen=True)
class Heading:
    """A heading in the stream that a reader of a format makes."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph in that stream."""

    text: str


@dataclass(frozen=True)
class Section:
    """A heading and its text.

    Args:
        title: the document's own; equal to `heading` in its first section.
    """

    title: str
    heading: str
    paragraphs: tuple[str, ...]


def sections_of(blocks: Iterable[Heading | Paragraph]) -> Iterator[Section]:
    """The stream in sections; the first heading that says something is the title, and what stands before it is left out.

    A heading that every document has, as "Introduction", takes the title's place."""
    title: str | None = None
    heading = ""
    paragraphs: list[str] = []
    for block in blocks:
        if isinstance(block, Paragraph):
            if title is not None:
                paragraphs.append(block.text)
            continue
        if paragraphs and title is not None:
            yield Section(title, heading, tuple(paragraphs))
        paragraphs = []
        is_empty = block.text.lower() in _EMPTY_HEADINGS
        if title is None and not is_empty:
            title = block.text
        heading = (title or "") if is_empty else block.text
    if paragraphs and title is not None:
        yield Section(title, heading, tuple(paragraphs))


def tidy(text: str) -> str:
    """On one line, single blanks."""
    return _BLANKS.sub(" ", text).strip()


def tidy_heading(text: str) -> str:
    """On one line, without its number and its link mark."""
    return _NUMBERING.sub("", tidy(text)).strip(" ¶#:")
