"""Reads HTML, DocBook and Mallard pages: their headings and paragraphs, in order, without code, tables of contents and pictures.

Called by `corpus`. It looks at the names of elements only, never at a publisher's classes.
"""

import re
from html.parser import HTMLParser

from examples.reranker.sections import Heading, Paragraph, tidy, tidy_heading

_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6", "title", "dt", "term"}
_PARAGRAPHS = {"p", "para", "li", "dd", "item", "listitem"}
_SKIPPED = {
    "script", "style", "pre", "nav", "head", "table", "footer", "svg", "math", "button", "select", "form",
    "info", "screen", "programlisting", "media", "mediaobject", "screenshot", "code_block", "links", "synopsis",
    "bookinfo", "sect1info", "articleinfo", "keywordset", "indexterm", "footnote", "sup",
}  # fmt: skip
_ENTITY = re.compile(r"&([A-Za-z][\w.-]*);")


def read_markup(text: str) -> list[Heading | Paragraph]:
    """The blocks of one page. A list's items are paragraphs, a definition's term is a heading."""
    reader = _Reader()
    # DocBook names its products by entities of its own, which read well as they stand.
    reader.feed(re.sub(r"<!DOCTYPE[^\[>]*\[.*?\]>|<\?xml[^>]*\?>", "", text, flags=re.DOTALL))
    reader.close()
    return reader.finished()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._blocks: list[Heading | Paragraph] = []
        self._parts: list[str] = []
        self._heading: str | None = None
        self._skipped: str | None = None
        self._depth = 0

    def finished(self) -> list[Heading | Paragraph]:
        self._end_block()
        return self._blocks

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped is not None:
            self._depth += tag == self._skipped
        elif tag in _SKIPPED:
            self._end_block()
            self._skipped, self._depth = tag, 1
        elif tag in _HEADINGS or tag in _PARAGRAPHS:
            self._end_block()
            self._heading = tag if tag in _HEADINGS else None
        elif tag in ("br", "td", "th"):
            self._parts.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._parts.append(" " if tag == "br" else "")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped is not None:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else None
        elif tag in _HEADINGS or tag in _PARAGRAPHS or tag in ("div", "section", "body"):
            self._end_block()

    def handle_data(self, data: str) -> None:
        if self._skipped is None:
            self._parts.append(data)

    def _end_block(self) -> None:
        text = _ENTITY.sub(r"\1", "".join(self._parts))
        self._parts = []
        text = tidy_heading(text) if self._heading else tidy(text)
        if text:
            self._blocks.append(Heading(text) if self._heading else Paragraph(text))
        self._heading = None
