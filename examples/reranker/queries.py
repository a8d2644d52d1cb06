"""Makes pairs of sections: a passage of each part of a section, and what somebody might have asked to find it.

Called by `corpus`. A query is the heading, or a question made of it; a sentence taken out of its passage (inverse cloze, Lee et
al., Latent Retrieval for Weakly Supervised Open Domain Question Answering, 2019, §4); some words of a sentence that stays; or a
question that a sentence that stays answers.
"""

import random
import re
from collections.abc import Iterable, Iterator, Set

from examples.reranker.pairs import Pair
from examples.reranker.questions import question_of_field, question_of_heading, question_of_sentence, question_of_word
from examples.reranker.sections import Section

_PASSAGE_WORDS = range(18, 161)
_TARGET_WORDS = 110
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_LETTERS = re.compile(r"[A-Za-z]{2,}")
_FILLERS = frozenset({
    "the", "a", "an", "of", "to", "in", "is", "are", "be", "and", "or", "that", "this", "it", "for", "on", "with", "as",
    "by", "at", "from", "which", "can", "will", "may", "its",
})  # fmt: skip
_PARTS_OF_A_SECTION = 3


def prose_pairs(document: str, sections: Iterable[Section], words: Set[str], chance: random.Random) -> Iterator[Pair]:
    """Pairs of a document that explains things; those of one section have the same `section`."""
    for number, section in enumerate(sections):
        place = f"{document}#{number}"
        for part, sentences in enumerate(_passages(section)[:_PARTS_OF_A_SECTION]):
            is_titled = section.title != section.heading and chance.random() < 0.5
            title = f"{section.title}\n" if is_titled else ""
            if part == 0 and len(section.heading.split()) in range(1, 15):
                query = question_of_heading(_full_heading(section, is_titled), words, chance)
                yield Pair(query, title + " ".join(sentences), document, place, "heading")
            if len(sentences) > 1 and (found := _asked(sentences, chance)) is not None:
                kind, query, kept = found
                yield Pair(query, title + " ".join(kept), document, place, kind)


def dictionary_pairs(document: str, sections: Iterable[Section], chance: random.Random) -> Iterator[Pair]:
    """Pairs of articles; half of the passages begin with the word that is asked for."""
    for number, section in enumerate(sections):
        for sentences in _passages(section)[:1]:
            word = f"{section.heading}: " if chance.random() < 0.5 else ""
            query = question_of_word(section.heading, chance)
            yield Pair(query, word + " ".join(sentences), document, f"{document}#{number}", "word")


def field_pairs(document: str, sections: Iterable[Section], chance: random.Random) -> Iterator[Pair]:
    """Pairs of one thing's description: without the title no passage would say what it is about."""
    for number, section in enumerate(sections):
        for sentences in _passages(section)[:1]:
            query = question_of_field(section.heading, section.title, chance)
            passage = f"{section.title}\n" + " ".join(sentences)
            yield Pair(query, passage, document, f"{document}#{number}", "field")


def _full_heading(section: Section, is_titled: bool) -> str:
    """Short headings, as "Options", are asked for together with what has them."""
    is_short = len(section.heading.split()) < 3 and section.heading != section.title
    return f"{section.heading} {section.title}" if is_short and not is_titled else section.heading


def _asked(sentences: list[str], chance: random.Random) -> tuple[str, str, list[str]] | None:
    """Kind, query and the sentences that stay; None where no sentence suits."""
    fit = [place for place, sentence in enumerate(sentences) if len(_LETTERS.findall(sentence)) in range(6, 31)]
    if not fit:
        return None
    questions = [question for place in fit if (question := question_of_sentence(sentences[place])) is not None]
    if questions and chance.random() < 0.75:
        return "question", chance.choice(questions), sentences
    place = chance.choice(fit)
    if chance.random() < 0.4:
        return "words", _some_words(sentences[place], chance), sentences
    kept = sentences[:place] + sentences[place + 1 :]
    is_enough = sum(len(sentence.split()) for sentence in kept) in _PASSAGE_WORDS
    return ("cloze", sentences[place], kept) if is_enough else None


def _some_words(sentence: str, chance: random.Random) -> str:
    words = re.findall(r"[\w'-]+", sentence.lower())
    kept = [word for word in words if chance.random() < (0.15 if word in _FILLERS else 0.6)]
    return " ".join(kept if len(kept) > 2 else words)


def _passages(section: Section) -> list[list[str]]:
    """The section's sentences in groups of about `_TARGET_WORDS` words; what is too short or is no language is left out."""
    groups: list[list[str]] = [[]]
    num_words = 0
    for sentence in (piece for paragraph in section.paragraphs for piece in _SENTENCES.split(paragraph)):
        length = len(sentence.split())
        if groups[-1] and num_words + length > _TARGET_WORDS:
            groups.append([])
            num_words = 0
        groups[-1].append(sentence)
        num_words += length
    return [group for group in groups if _is_prose(" ".join(group))]


def _is_prose(text: str) -> bool:
    words = text.split()
    letters = sum(character.isalpha() or character.isspace() for character in text)
    return len(words) in _PASSAGE_WORDS and letters > 0.85 * len(text) and len(text) < 9 * len(words)
