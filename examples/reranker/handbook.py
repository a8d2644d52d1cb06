"""Questions about the collection of `examples.rag`, each with its file and words of the paragraph that answers it.

Used by `train` to measure on text of another kind than is learnt from. The questions avoid the paragraphs' words where they can.
"""

from dataclasses import dataclass
from pathlib import Path

from examples.rag.collection import Passage, read_collection

COLLECTION = Path("examples/rag/collection")


@dataclass(frozen=True)
class HandbookQuestion:
    """`answer` is found in one paragraph of `file` only."""

    text: str
    file: str
    answer: str


QUESTIONS = (
    HandbookQuestion("When does the last cabin go down to the valley?", "cable-car.md", "22:40"),
    HandbookQuestion("At which wind speed does the cable car stop running?", "cable-car.md", "65 kilometres"),
    HandbookQuestion("What happens to visitors who cannot get down in the evening?", "cable-car.md", "stranded"),
    HandbookQuestion("How humid may it be before the domes are shut?", "dome-limits.md", "88 percent"),
    HandbookQuestion("With what is snow removed from the shutters?", "dome-limits.md", "wooden broom"),
    HandbookQuestion("Who paid for the building of the observatory?", "founding.md", "quarry, whose owner"),
    HandbookQuestion("What was the founder's profession?", "founding.md", "clockmaker"),
    HandbookQuestion("Who owns the observatory today?", "founding.md", "belonged to a trust"),
    HandbookQuestion("How heavy is the big telescope's mirror?", "halden-telescope.md", "1,150 kilograms"),
    HandbookQuestion("Why can the telescope not look near the horizon?", "halden-telescope.md", "slip on its supports"),
    HandbookQuestion("How often is the mirror coated anew?", "mirror-care.md", "every 18 months"),
    HandbookQuestion("How is dust taken off the mirror?", "mirror-care.md", "carbon dioxide snow"),
    HandbookQuestion("When will the comet come back?", "comet-verrall-asher.md", "2053"),
    HandbookQuestion("Who found the comet?", "comet-verrall-asher.md", "Jonas Asher"),
    HandbookQuestion("What do three blasts of the horn mean?", "avalanche.md", "Three long blasts"),
    HandbookQuestion("What must I take with me when I go outside in winter?", "avalanche.md", "transceiver"),
    HandbookQuestion("When are the street lights in the village turned down?", "dark-sky-agreement.md", "23:00"),
    HandbookQuestion("How long does an astronomer keep the data for himself?", "data-archive.md", "nine months"),
    HandbookQuestion("Where are the backups stored?", "data-archive.md", "three copies"),
    HandbookQuestion("What burned down in the fifties?", "fire-and-alarm.md", "1954"),
    HandbookQuestion("Where do people gather when there is a fire?", "fire-and-alarm.md", "assembly"),
    HandbookQuestion("What number do I call if somebody is hurt?", "first-aid.md", "Dial 7"),
    HandbookQuestion("I have a headache since I came up here, is that normal?", "first-aid.md", "Headache"),
    HandbookQuestion("How much is a bed for the night?", "guest-rooms.md", "38 crowns"),
    HandbookQuestion("When do I have to be silent in the corridors?", "guest-rooms.md", "Quiet hours"),
    HandbookQuestion("Can people with a nut allergy eat here?", "kitchen-and-meals.md", "peanuts"),
    HandbookQuestion("When is dinner?", "kitchen-and-meals.md", "18:30"),
    HandbookQuestion("What drives the oldest telescope?", "lantern-refractor.md", "falling weight"),
    HandbookQuestion("For how long can I take a book home?", "library.md", "three\nweeks"),
    HandbookQuestion(
        "Which gloves and shield are needed to fill up the cooling liquid?", "liquid-nitrogen.md", "long gloves"
    ),
    HandbookQuestion("What if the camera gets too warm?", "magpie-camera.md", "switches itself off"),
    HandbookQuestion("How many nights in a row may somebody be on duty?", "night-assistants.md", "five nights"),
    HandbookQuestion("By when must I hand in a proposal for telescope time?", "observing-time.md", "15\nMarch"),
    HandbookQuestion("On which days can I not visit the exhibition?", "opening-hours.md", "closed on Mondays"),
    HandbookQuestion("Can I charge my car somewhere?", "parking-and-arrival.md", "chargers"),
    HandbookQuestion("Can I drive up to the top by car?", "parking-and-arrival.md", "no public road"),
    HandbookQuestion(
        "How long does the electricity last if the line from the valley breaks?", "power-supply.md", "six hours"
    ),
    HandbookQuestion("How do I get a place at an evening of stargazing?", "public-nights.md", "Booking opens"),
    HandbookQuestion("Why must I hand in my mobile before going to the antenna?", "radio-dish.md", "microwave ovens"),
    HandbookQuestion("How many children may come with a class?", "school-visits.md", "28\npupils"),
    HandbookQuestion("Which month has the worst weather for observing?", "site-and-altitude.md", "clearest month"),
    HandbookQuestion("What is the name of the vehicle that drives on snow?", "snowcat.md", "called Bruno"),
    HandbookQuestion("What animal lives at the observatory, and who gives it food?", "staff.md", "Parsec"),
    HandbookQuestion("Do I get my money back if it is cloudy?", "tickets.md", "refunded"),
    HandbookQuestion("May I bring my dog?", "visitor-rules.md", "Dogs are not allowed"),
    HandbookQuestion("May I use a flashlight at night?", "visitor-rules.md", "red torches"),
    HandbookQuestion("How long may I shower?", "water-supply.md", "four minutes"),
    HandbookQuestion("What was the most snow there ever was?", "weather-station.md", "4.7 metres"),
    HandbookQuestion("May I use the lathe when nobody else is there?", "workshop.md", "anyone who is alone"),
    HandbookQuestion("When was the spectrograph made?", "wren-spectrograph.md", "2009"),
)


def handbook_passages() -> list[Passage]:
    """Every paragraph of the collection."""
    return read_collection(COLLECTION)


def answers_in(passages: list[Passage]) -> list[int]:
    """For each question the place of the passage that answers it.

    Raises:
        ValueError: the collection has changed, and some answer is in no passage or in several.
    """
    places = []
    for question in QUESTIONS:
        words = " ".join(question.answer.split())
        found = [
            place for place, passage in enumerate(passages) if passage.file == question.file and words in passage.text
        ]
        if len(found) != 1:
            raise ValueError(f"{question.answer!r} is in {len(found)} passages of {question.file}")
        places.append(found[0])
    return places
