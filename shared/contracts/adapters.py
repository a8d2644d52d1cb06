"""`GET /v1/adapters`: what the adapters of a generator are, by content and by cost."""

from typing import Literal

from shared.contracts.wire import WireModel


class AdapterEntry(WireModel):
    """One adapter.

    Attributes:
        root: where it was read from.
        digest: SHA-256 of its content, in hexadecimal; equal weights have equal digests whatever they are called.
        max_rank: largest rank of any of its modules.
        num_modules: modules of the base model that it changes.
        num_bytes: of its tensors in host memory.
    """

    name: str
    root: str
    digest: str
    max_rank: int
    num_modules: int
    num_bytes: int


class AdapterList(WireModel):
    """All adapters that requests can name."""

    object: Literal["list"] = "list"
    data: list[AdapterEntry]
