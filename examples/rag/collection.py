"""The text side of the example: reads a folder of documents and splits them into passages.

Called by __main__. Knows nothing of models or HTTP; a passage is one paragraph, small enough for the embedder.
"""

import re
from dataclasses import dataclass
from pathlib import Path

MAX_PASSAGE_WORDS = 120
SUFFIXES = (".md", ".txt")


class CollectionError(Exception):
    """The folder cannot be used: it is not there, or no document in it holds any text."""


@dataclass(frozen=True)
class Passage:
    """One paragraph of a document, with what is needed to find and to cite it."""

    file: str
    title: str
    text: str

    @property
    def titled_text(self) -> str:
        """What is embedded and reranked: a paragraph alone often does not say what it is about."""
        return f"{self.title}\n{self.text}"


def read_collection(folder: Path) -> list[Passage]:
    """Read every .md and .txt file below the folder, in the order of their names.

    Raises:
        CollectionError: the folder does not exist, or there is nothing to read in it.
    """
    if not folder.is_dir():
        raise CollectionError(f"there is no folder {folder}")
    passages: list[Passage] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            name = path.relative_to(folder).as_posix()
            passages.extend(split_document(name, path.read_text(encoding="utf-8-sig", errors="replace")))
    if not passages:
        raise CollectionError(f"{folder} holds no text in {' or '.join(SUFFIXES)} files")
    return passages


def split_document(name: str, text: str) -> list[Passage]:
    """Split one document at its blank lines; paragraphs above MAX_PASSAGE_WORDS are split again, between sentences.

    The title is the first heading of level one, else the file's name. Other headings belong to the paragraph below.
    """
    title = Path(name).stem
    has_title = False
    heading = ""
    passages: list[Passage] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.strip().splitlines()
        while lines and (match := re.match(r"(#{1,6})\s+(.+)", lines[0])):
            lines.pop(0)
            if match[1] == "#" and not has_title:
                title, has_title = match[2].strip(), True
            else:
                heading = match[2].strip() + ": "
        paragraph = " ".join(" ".join(lines).split())
        if paragraph:
            passages.extend(Passage(name, title, piece) for piece in _split_long(heading + paragraph))
            heading = ""
    return passages


def _split_long(paragraph: str) -> list[str]:
    pieces: list[list[str]] = [[]]
    for sentence in re.split(r"(?<=[.!?])\s+", paragraph):
        words = sentence.split()
        if pieces[-1] and len(pieces[-1]) + len(words) > MAX_PASSAGE_WORDS:
            pieces.append([])
        pieces[-1].extend(words)
    # A single sentence may still be too long (a table, a list): cut it where the limit falls.
    return [
        " ".join(piece[start : start + MAX_PASSAGE_WORDS])
        for piece in pieces
        for start in range(0, len(piece), MAX_PASSAGE_WORDS)
    ]
