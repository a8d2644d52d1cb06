"""Makes questions by rule: of a heading, of a dictionary's headword, of a sentence that is about a thing.

Called by `queries`. What no rule fits gives no question. The rules know English words' forms only where a list of words that
occur tells a right form from a wrong one.
"""

import random
import re
from collections.abc import Set

_VOWELS = "aeiou"
_IMPERATIVES = frozenset({
    "add", "allow", "apply", "build", "change", "check", "choose", "clear", "close", "combine", "compare", "configure",
    "connect", "convert", "copy", "create", "customize", "cut", "define", "delete", "disable", "display", "draw", "edit",
    "enable", "enter", "export", "filter", "find", "format", "get", "hide", "import", "insert", "install", "keep", "load",
    "lock", "make", "manage", "move", "open", "paste", "play", "print", "protect", "prevent", "read", "record", "remove",
    "rename", "repair", "replace", "resize", "restore", "rotate", "run", "save", "search", "select", "send", "set",
    "share", "show", "sort", "start", "stop", "switch", "test", "turn", "undo", "unlock", "update", "upgrade", "use",
    "view", "watch", "work", "write",
})  # fmt: skip
_AUXILIARIES = "is|are|was|were|can|must|may|should|will|could|might"
_SUBJECT = r"(?P<subject>(?:The|A|An|Each|Every|All|Some|Most|[A-Z][\w-]+)(?: [\w'-]+){0,5}?)"
_CLAUSES = {"when": "When", "if": "When", "after": "When", "because": "Why", "since": "Why", "so that": "Why", "by": "How",
            "in": "Where", "at": "Where", "until": "Until when"}  # fmt: skip
_SAID = re.compile(
    rf"^{_SUBJECT} (?P<aux>{_AUXILIARIES}) (?P<what>[^,;:()]+?) (?P<link>{'|'.join(_CLAUSES)}) (?P<clause>.+)$"
)
_DEFINED = re.compile(rf"^{_SUBJECT} (?P<aux>is|are) (?P<what>(?:an?|the|one of|any) .+)$")
_NUMBERS = r"\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty"
_UNIT = r"(?!is|as|its|this|was|has|does)[a-z]{3,}s"
_COUNTED = re.compile(rf"^(?P<before>.+?)\b(?:{_NUMBERS}) (?P<unit>{_UNIT})\b(?P<after>.*)$")
_VAGUE = frozenset({
    "this", "that", "these", "those", "it", "they", "there", "you", "we", "i", "he", "she", "if", "when", "in", "on",
    "for", "as", "such", "to", "what", "how", "no", "not", "both", "note", "thus", "then", "which", "also", "hence",
    "therefore", "however", "only", "see", "use", "unless", "once", "until", "after", "before", "where", "while",
    "because", "since", "although", "though", "so", "but", "and", "or", "here", "with", "without", "by", "from", "at",
    "first", "second", "finally", "another", "other", "its", "their", "your", "our",
})  # fmt: skip


def question_of_heading(heading: str, words: Set[str], chance: random.Random) -> str:
    """The heading as someone who looks for its section would ask; the heading itself where it is neither task nor thing."""
    first, _, rest = heading.partition(" ")
    verb = _base_form(first.lower(), words)
    if heading.endswith("?") or not rest:
        return (
            heading
            if rest
            else chance.choice(("What is {}?", "what does {} mean", "{}", "Explain {}.")).format(heading)
        )
    if verb is not None:
        task = f"{verb} {rest}"
        return chance.choice(("How do I {}?", "How can I {}?", "how to {}", "{}", "I want to {}")).format(task)
    return chance.choice(("{}", "What is {}?", "Tell me about {}.", "what about {}", "{}")).format(heading)


def question_of_word(word: str, chance: random.Random) -> str:
    """What a dictionary is asked."""
    forms = ("What is {}?", "what does {} mean", "Define {}.", "What is meant by {}?", "{}", "meaning of {}")
    return chance.choice(forms).format(word.lower() if chance.random() < 0.7 else word)


def question_of_field(heading: str, title: str, chance: random.Random) -> str:
    """What is asked of one field of a thing's description."""
    field = heading.replace(" - ", " ")
    field = field if field.isupper() else field[0].lower() + field[1:]
    forms = (
        "What is the {field} of {title}?",
        "{title} {field}",
        "Tell me about the {field} of {title}.",
        "{field} in {title}",
    )
    return chance.choice(forms).format(field=field, title=title)


def question_of_sentence(sentence: str) -> str | None:
    """A question that the sentence answers: when, why, how, where, how many, or what something is."""
    sentence = sentence.rstrip(".")
    first = sentence.split(" ", 1)[0].lower()
    if first in _VAGUE or not 6 <= len(sentence.split()) <= 35:
        return None
    if said := _SAID.match(sentence):
        asked = "Why" if said["link"] == "in" and said["clause"].startswith("order to") else _CLAUSES[said["link"]]
        return f"{asked} {said['aux']} {_lowered(said['subject'])} {said['what']}?"
    if defined := _DEFINED.match(sentence):
        return f"What {defined['aux']} {_lowered(defined['subject'])}?"
    if counted := _COUNTED.match(sentence):
        words = [
            word for word in f"{counted['before']} {counted['after']}".split() if word.lower() not in {"the", "a", "an"}
        ]
        return f"How many {counted['unit']} {_lowered(' '.join(words[:12]))}?"
    return None


def _lowered(text: str) -> str:
    first, _, rest = text.partition(" ")
    is_name = first.lower() not in {"the", "a", "an", "each", "every", "all", "some", "most"}
    return text if is_name else f"{first.lower()} {rest}"


def _base_form(word: str, words: Set[str]) -> str | None:
    """`change` of "changing" and of "change"; None where the word is no verb that a task begins with."""
    if word in _IMPERATIVES:
        return word
    stem = word.removesuffix("ing")
    if stem == word or len(stem) < 2 or not set(stem) & set(_VOWELS + "y"):
        return None
    undoubled = stem[:-1] if len(stem) > 2 and stem[-1] == stem[-2] and stem[-1] not in "lsz" else stem
    for form in (f"{stem}e", undoubled, stem):
        if form in words:
            return form
    return None
