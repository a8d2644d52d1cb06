"""Reads manual pages (man's roff) and Perl's POD: their headings and paragraphs, without synopses and code.

Called by `corpus`. It understands as much of roff as pages that describe things in sentences use; the rest it leaves out.
"""

import re
from collections.abc import Iterator

from examples.reranker.sections import Heading, Paragraph, tidy, tidy_heading

_ESCAPES = re.compile(r"\\f[A-Z]|\\f\(..|\\f\[\w*\]|\\s[-+]?\d|\\[&:%/,|^]|\\c$")
_CHARACTERS = {
    r"\-": "-", r"\e": "\\", r"\(aq": "'", r"\[aq]": "'", r"\(dq": '"', r"\[dq]": '"', r"\(bu": "", r"\[bu]": "",
    r"\(em": " - ", r"\[em]": " - ", r"\(en": "-", r"\[en]": "-", r"\(lq": '"', r"\(rq": '"', r"\[lq]": '"', r"\[rq]": '"',
    r"\ ": " ", r"\~": " ", r"\(ti": "~", r"\[ti]": "~", r"\(ha": "^", r"\[ha]": "^", r"\(co": "(c)", r"\(+-": "±",
}  # fmt: skip
_HEADINGS = {"SH", "SS"}
_EXAMPLE_STARTS, _EXAMPLE_ENDS = {"nf", "EX", "TS"}, {"fi", "EE", "TE"}
_FONTS = {"B", "I", "BR", "BI", "RB", "RI", "IB", "IR", "SM", "SB", "UR", "MR"}
_BREAKS = {"PP", "P", "LP", "TP", "TQ", "IP", "HP", "RS", "RE", "br", "sp", "UE", "ME"}
_NAME_LINE = re.compile(r"^(?P<names>.+?)\s+-\s+(?P<what>.+)$")
_WORDS = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_POD_CODE = re.compile(r"\b[A-Z](?:<<+ (.*?) >>+|<([^<>]*)>)", re.DOTALL)


def read_man(text: str) -> list[Heading | Paragraph]:
    """The blocks of a page; its title is what the NAME line says it does, so that the DESCRIPTION answers that."""
    blocks = list(_roff_blocks(text))
    if len(blocks) < 3 or blocks[0] != Heading("NAME") or not isinstance(blocks[1], Paragraph):
        return []
    named = _NAME_LINE.match(blocks[1].text)
    if named is None:
        return []
    name = named["names"].split(",")[0].strip()
    title = Heading(f"{name}: {named['what']}")
    body = [title if block == Heading("DESCRIPTION") else block for block in blocks[2:]]
    return [title, *body]


def _roff_blocks(text: str) -> Iterator[Heading | Paragraph]:
    parts: list[str] = []
    for request, rest in _requests(text):
        if request in _FONTS:
            parts.append(("" if len(request) == 2 else " ").join(_arguments(rest)))
        elif request in _BREAKS or request in _HEADINGS:
            yield from _paragraph(parts)
            parts = []
            if request in _HEADINGS:
                yield Heading(tidy_heading(" ".join(_arguments(rest))))
        elif not request:
            parts.append(_plain(rest))
    yield from _paragraph(parts)


def _requests(text: str) -> Iterator[tuple[str, str]]:
    """Each line's request, empty where it is text, and the rest of the line; examples and tables are left out."""
    is_example = False
    for line in text.splitlines():
        request, _, rest = line[1:].lstrip().partition(" ") if line[:1] in (".", "'") else ("", "", line)
        if request in _EXAMPLE_STARTS or request in _EXAMPLE_ENDS:
            is_example = request in _EXAMPLE_STARTS
        elif not is_example:
            yield request, rest


def _paragraph(parts: list[str]) -> Iterator[Paragraph]:
    if text := tidy(" ".join(parts)):
        yield Paragraph(text)


def _arguments(rest: str) -> list[str]:
    return [_plain(quoted or bare) for quoted, bare in _WORDS.findall(rest)]


def _plain(text: str) -> str:
    text = _ESCAPES.sub("", text)
    for escape, character in _CHARACTERS.items():
        text = text.replace(escape, character)
    return re.sub(r'\\".*$|\\[(\[].?.?\]?', "", text)


def read_pod(text: str) -> list[Heading | Paragraph]:
    """The blocks of a POD page."""
    blocks: list[Heading | Paragraph] = []
    for block in re.split(r"\n\s*\n", text):
        if not block or block[0].isspace():
            continue
        if block.startswith("="):
            command, _, rest = block.partition(" ")
            if command.startswith(("=head", "=item")) and (heading := tidy_heading(_without_codes(rest))):
                blocks.append(Heading(heading))
        elif paragraph := tidy(_without_codes(block)):
            blocks.append(Paragraph(paragraph))
    return blocks


def _without_codes(text: str) -> str:
    for _ in range(3):
        text = _POD_CODE.sub(lambda code: (code[1] or code[2] or "").partition("|")[0], text)
    return text
