"""What the reranker learns from: documents of each format into sections, sections into queries and passages."""

import json
import random
from pathlib import Path

import pytest

from examples.reranker import docstrings
from examples.reranker.dictionaries import read_dictionary, read_factbook
from examples.reranker.manuals import read_man, read_pod
from examples.reranker.markup import read_markup
from examples.reranker.queries import prose_pairs
from examples.reranker.questions import question_of_heading, question_of_sentence
from examples.reranker.sections import Section, sections_of

SOURCE = '''
def used(a):
    """Return the number of blocks in use.

    A block counts as used from the moment it is given to a sequence until the last of the sequences that share it
    has ended, whatever the cache does with it afterwards.
    """

def terse(a):
    """Return it."""
'''
PAGE = """<!DOCTYPE html><html><head><title>No</title></head><body><nav><p>Up</p></nav><h1>2.1. Locks &amp; keys</h1>
<p>A lock <b>holds</b> a
door.</p><pre>lock()</pre><h2>Introduction</h2><ul><li>One key.</li></ul><h2>Lost keys¶</h2><p>Ask.</p></body></html>"""
MAN = r""".TH lock 1
.SH NAME
lock, unlock \- hold a door
.SH SYNOPSIS
.nf
.B lock door
.fi
.SH DESCRIPTION
The
.BR lock (1)
command holds \fIdoor\fP.
.PP
It may
.\" not now
.I fail .
.SH "EXIT STATUS"
0 on success.
"""
POD = "=head1 Lost C<keys>\n\nAsk L<the warden|warden>.\n\n    code\n\n=cut\n"
DICTIONARY = """Lock \\Lock\\, n. [AS. loc inclosure.]
   1. Anything that fastens; a {fastening}.
      [1913 Webster]

Lockage \\Lock"age\\, n.
   Materials for locks in a canal. --Smart.
"""


def test_a_page_of_each_format_gives_its_sections() -> None:
    assert list(sections_of(read_markup(PAGE))) == [
        Section("Locks & keys", "Locks & keys", ("A lock holds a door.",)),
        Section("Locks & keys", "Locks & keys", ("One key.",)),
        Section("Locks & keys", "Lost keys", ("Ask.",)),
    ]
    assert list(sections_of(read_man(MAN))) == [
        Section(
            "lock: hold a door", "lock: hold a door", ("The lock(1) command holds door.", "It may fail ."),
        ),
        Section("lock: hold a door", "EXIT STATUS", ("0 on success.",)),
    ]  # fmt: skip
    assert list(sections_of(read_pod(POD))) == [Section("Lost keys", "Lost keys", ("Ask the warden.",))]
    assert list(read_dictionary(DICTIONARY)) == [
        Section("", "Lock", ("1. Anything that fastens; a fastening .",)),
        Section("", "Lockage", ("Materials for locks in a canal.",)),
    ]
    country = {"Government": {"Country name": {"conventional short form": {"text": "Utopia"}}},
               "Geography": {"Terrain": {"text": "flat <b>everywhere</b>"}, "Area": {"total": {"text": "1"}}}}  # fmt: skip
    assert list(read_factbook(json.dumps(country))) == [Section("Utopia", "Terrain", ("flat everywhere",))]


@pytest.mark.parametrize(
    ("sentence", "question"),
    [
        ("The domes must be closed when the wind is strong.", "When must the domes be closed?"),
        ("The gate is left open because the lock is broken.", "Why is the gate left open?"),
        ("A tenon is the end of a piece of wood.", "What is a tenon?"),
        ("The hall of the castle holds 40 chairs in winter.", "How many chairs hall of castle holds in winter?"),
        ("This may be changed when the wind is strong.", None),
    ],
)
def test_a_question_that_a_sentence_answers(sentence: str, question: str | None) -> None:
    assert question_of_sentence(sentence) == question


@pytest.mark.parametrize(
    ("heading", "task"),
    [("Changing the lamp", "change the lamp"), ("Planning a trip", "plan a trip"), ("Pressing on", "press on")],
)
def test_a_task_is_asked_for_by_its_verb(heading: str, task: str) -> None:
    words = frozenset({"change", "plan", "press"})
    assert all(task in question_of_heading(heading, words, random.Random(seed)) for seed in range(8))


def test_a_sentence_taken_out_is_not_in_its_passage() -> None:
    sentences = [f"The keeper of tower number {word} sweeps the stairs of it daily." for word in ("one", "six", "ten")]
    sections = [Section("Towers", "Keepers", (" ".join(sentences),))] * 60
    pairs = list(prose_pairs("s/doc", sections, frozenset(), random.Random(0)))
    taken = [pair for pair in pairs if pair.kind == "cloze"]
    assert taken
    for pair in taken:
        assert pair.query in sentences
        assert pair.passage.removeprefix("Towers\n") == " ".join(each for each in sentences if each != pair.query)
    assert {pair.section for pair in pairs} == {f"s/doc#{number}" for number in range(60)}


def test_a_docstrings_first_sentence_asks_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "broken.py").write_text("def (")
    (package / "tests" / "more.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    (pair,) = docstrings.docstring_pairs(["some_package", "no_such_package"])
    assert pair.query == "Return the number of blocks in use"
    assert pair.passage.startswith("A block counts as used from the moment")
    assert "\n" not in pair.passage
