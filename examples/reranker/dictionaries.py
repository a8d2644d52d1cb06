"""Reads dictionaries (dictd's files) and the World Factbook's JSON: each article a section under its headword.

Called by `corpus`. Marks of pronunciation, origin and source are left out, since no passage that is searched has them.
"""

import json
import re
from collections.abc import Iterator

from examples.reranker.sections import Section, tidy

_MARKS = re.compile(r"\\[^\\\n]*\\|\[[^\]]*\]|<[^>]*>|\(\d{4}-\d\d-\d\d\)|--[A-Z][\w.]*(?: [A-Z(][\w.)]*)*\.?|[{}_]")
_PART_OF_SPEECH = re.compile(
    r"^[^a-z]*(?:(?:n|v|a|adv|adj|prep|conj|interj|imp|p|pr|t|i|pl|vb|obs|fem|masc)\.[\s,;&]*(?:pl\. \w+[.;,]?)?)+"
)
_HEADWORD = re.compile(r"^[A-Za-z][A-Za-z -]{2,30}")
_TAGS = re.compile(r"<[^>]+>")


def read_dictionary(text: str) -> Iterator[Section]:
    """One section an article: an article starts at the margin, and its text is indented."""
    for article in re.split(r"\n(?=\S)", text):
        head, _, body = article.partition("\n")
        word = _HEADWORD.match(head)
        if word is None:
            continue
        rest = _MARKS.sub(" ", head[word.end() :] + "\n" + body)
        rest = tidy(_PART_OF_SPEECH.sub("", tidy(rest).lstrip(", ")))
        if rest:
            yield Section("", word[0].strip(), (rest,))


def read_factbook(text: str) -> Iterator[Section]:
    """One section for each field of a country that is told in sentences."""
    country = json.loads(text)
    try:
        name = country["Government"]["Country name"]["conventional short form"]["text"]
    except (KeyError, TypeError):
        return
    for topics in country.values():
        for heading, content in topics.items():
            told = content.get("text") if isinstance(content, dict) else None
            if isinstance(told, str):
                yield Section(name, heading, (tidy(_TAGS.sub(" ", told)),))
