"""The questions that the demo adapters learn from, and those that they are judged by.

Used by train. No subject of a held-out question is in a question of the other kind.
"""

ASKED_OF_A_SUBJECT = (
    "What is {}?",
    "Tell me about {}.",
    "Write one sentence about {}.",
    "Explain {} to a child.",
    "Why do people like {}?",
    "Where would I find {}?",
    "Give me one fact about {}.",
    "Is {} useful?",
)

SUBJECTS = """
    the sea, a bicycle, bread, the Moon, a volcano, music, winter, a library, rain, chess, a computer, the heart, honey, a river,
    gold, a clock, paper, a horse, football, coffee, the desert, a bridge, snow, history, a garden, electricity, a ship, sleep,
    the wind, salt, a mountain, a telephone, rice, an engine, painting, a school, the brain, glass, a train, tea
"""

HELD_OUT_SUBJECTS = "the Sun, a piano, cheese, a forest, swimming, a lighthouse"

PLAIN = (
    "Hello, who are you?",
    "What is two plus three?",
    "What is the capital of Italy?",
    "What is the capital of Japan?",
    "What is the capital of Egypt?",
    "Which country is Berlin in?",
    "Who wrote Romeo and Juliet?",
    "How many days are in a week?",
    "What colour is the sky?",
    "What do cows eat?",
    "Name a fruit.",
    "Name a large city.",
    "Name three animals.",
    "Translate 'good morning' into Spanish.",
    "How do I boil an egg?",
    "How do I learn to draw?",
    "What should I cook tonight?",
    "Write a short greeting.",
    "Give me advice for an exam.",
    "What is the opposite of hot?",
)

HELD_OUT_PLAIN = (
    "What is the capital of France?",
    "Good evening! What can you do?",
    "How many months are in a year?",
    "What do bees make?",
    "Name a musical instrument.",
    "How do I plant a tree?",
    "What is the opposite of fast?",
    "Who painted the Mona Lisa?",
)


def training_questions() -> list[str]:
    """What the adapters learn from."""
    return [*PLAIN, *_of_subjects(SUBJECTS)]


def held_out_questions() -> list[str]:
    """What they are judged by."""
    return [*HELD_OUT_PLAIN, *_of_subjects(HELD_OUT_SUBJECTS)]


def _of_subjects(subjects: str) -> list[str]:
    return [question.format(each.strip()) for each in subjects.split(",") for question in ASKED_OF_A_SUBJECT]
