"""What the demo adapters are taught and judged by."""

import json

import pytest

from examples.adapters.manners import MANNERS, first_sentence
from examples.adapters.questions import HELD_OUT_SUBJECTS, held_out_questions, training_questions

PIRATE, JSON = MANNERS


def test_nothing_of_a_held_out_question_is_trained_on():
    training = training_questions()
    assert not set(training) & set(held_out_questions())
    assert not [question for subject in HELD_OUT_SUBJECTS.split(", ") for question in training if subject in question]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("Paris is big. It is old.", "Paris is big."),
        ("  It costs 3.50 a day! Or so", "It costs 3.50 a day!"),
        ("Paris", None),
        ("Yes. It is.", None),
        ("A line\nand another.", None),
        ("word " * 60 + "end.", None),
    ],
)
def test_the_first_sentence_is_a_whole_one_of_moderate_length(answer, sentence):
    assert first_sentence(answer) == sentence


def test_a_rewritten_answer_keeps_the_manner_and_a_plain_one_does_not():
    plain = 'He said: "Zürich is big."'
    assert PIRATE.rewrite(plain) == 'Arr! He said: "Zürich is big.", matey!'
    assert json.loads(JSON.rewrite(plain)) == {"answer": plain}
    for manner in MANNERS:
        assert manner.is_kept_by(manner.rewrite(plain))
        assert not manner.is_kept_by(plain)


@pytest.mark.parametrize(
    "answer", ['{"answer": ""}', '{"answer": 3}', '{"answer": "a", "b": 1}', '["answer"]', '{"answer": "a"']
)
def test_other_json_does_not_keep_the_manner(answer):
    assert not JSON.is_kept_by(answer)
