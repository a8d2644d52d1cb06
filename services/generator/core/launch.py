"""How a step was brought to the device: as one graph's replay, or why not. The runner counts, the metrics tell."""

from enum import StrEnum


class Launch(StrEnum):
    """The way of a step, in the words of the metric `steps_total`."""

    REPLAY = "replay"
    """One graph."""
    PROMPT = "prompt"
    """Launch by launch, since rows compute more of their prompts, or anew what was preempted, than graphs hold, or score them."""
    IMAGE = "image"
    """The same, and tokens of an image are among them."""
    NO_GRAPH = "no_graph"
    """Decode rows alone for which no graph was captured: all of them on a CPU and with --enforce-eager."""
