"""The pictures that the demo model learns from and is measured on: handwritten digits, and coloured shapes that are drawn here.

Digits: `sklearn.datasets.load_digits` (1,797 images of 8 x 8, from the Optical Recognition of Handwritten Digits set of UCI); the
last 200 are held out. Shapes: drawn anew from a seed, so any number of them, and none of those that are measured is learnt from.
"""

import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits

NUM_HELD_OUT = 200
SIDE = 32
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 210, 40),
    "purple": (150, 50, 180),
    "orange": (245, 140, 20),
}
NUM_CORNERS = {"circle": 0, "triangle": 3, "square": 4, "star": 10}
SCALE = 4
"""Shapes are drawn so much larger and then made small, for smooth edges."""


@dataclass(frozen=True)
class Question:
    """What is asked of a picture, the sentence that answers it, and the word that must be in the answer."""

    text: str
    answer: str
    word: str


@dataclass(frozen=True)
class Picture:
    """An RGB image and what may be asked of it; `caption` is what the encoder's rows learn first."""

    image: Image.Image
    caption: str
    questions: tuple[Question, ...]


def digits() -> tuple[list[Picture], list[Picture]]:
    """(learnt from, held out)."""
    data = load_digits()
    pictures = [_digit(image, int(target)) for image, target in zip(data.images, data.target, strict=True)]
    return pictures[:-NUM_HELD_OUT], pictures[-NUM_HELD_OUT:]


def draw_shape(rng: random.Random) -> Picture:
    """One shape in one colour, of any size, tilted and placed at random on a light or a dark ground."""
    shape, colour = rng.choice(list(NUM_CORNERS)), rng.choice(list(COLOURS))
    ground = rng.choice([rng.randint(225, 255), rng.randint(0, 30)])
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), (ground,) * 3)
    radius = rng.uniform(0.28, 0.46) * SIDE * SCALE
    x, y = (rng.uniform(radius, SIDE * SCALE - radius) for _ in "xy")
    fill = tuple(max(0, min(255, value + rng.randint(-15, 15))) for value in COLOURS[colour])
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    else:
        upright = math.pi / 4 if shape == "square" else -math.pi / 2
        draw.polygon(_corners(NUM_CORNERS[shape], (x, y), radius, upright + rng.uniform(-0.2, 0.2)), fill=fill)
    small = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return Picture(small, f" {colour} {shape}", _shape_questions(shape, colour))


def _corners(count: int, centre: tuple[float, float], radius: float, turn: float) -> list[tuple[float, float]]:
    """Of a regular polygon, or of a star, whose every second corner lies further in."""
    inner = 0.45 if count > 4 else 1.0
    radii = [radius if number % 2 == 0 else radius * inner for number in range(count)]
    angles = [turn + 2 * math.pi * number / count for number in range(count)]
    return [
        (centre[0] + r * math.cos(angle), centre[1] + r * math.sin(angle))
        for r, angle in zip(radii, angles, strict=True)
    ]


def _digit(values: np.ndarray, target: int) -> Picture:
    """Dark on white; values are 0 … 16."""
    grey = Image.fromarray((255 - values * 255 / 16).astype(np.uint8), "L")
    image = grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")
    asked = ("What digit is this?", "Which number do you see?", "What is in this picture?")
    return Picture(
        image, f" digit {target}", tuple(Question(text, f"It is the digit {target}.", str(target)) for text in asked)
    )


def _shape_questions(shape: str, colour: str) -> tuple[Question, ...]:
    whole = f"It is a {colour} {shape}." if colour != "orange" else f"It is an orange {shape}."
    return (
        Question("What shape is this?", f"It is a {shape}.", shape),
        Question("What color is it?", f"It is {colour}.", colour),
        Question("What is in this picture?", whole, f"{colour} {shape}"),
    )


def shifted(picture: Picture, rng: random.Random) -> Picture:
    """The same, moved and scaled a little, so that few digits teach more."""
    side = rng.uniform(0.85, 1.25) * SIDE
    x, y = (SIDE / 2 - side / 2 + rng.uniform(-2.5, 2.5) for _ in "xy")
    image = picture.image.transform(
        (SIDE, SIDE),
        Image.Transform.AFFINE,
        (side / SIDE, 0, x, 0, side / SIDE, y),
        Image.Resampling.BICUBIC,
        fillcolor=(255, 255, 255),
    )
    return Picture(image, picture.caption, picture.questions)
