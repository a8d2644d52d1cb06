"""What is known about an adapter once its folder has been checked; crosses to processes that have no torch.

Made by `adapters.outline` and `adapters.peft_folder`, shown to operators. Describes; holds no weights.
"""

import msgspec


class ModuleReport(msgspec.Struct, array_like=True, frozen=True):
    """One module that the adapter changes.

    Attributes:
        module: its full name in the base model.
        scale: what B A is multiplied with, as fp32 holds it.
    """

    module: str
    rank: int
    scale: float


class SkippedTensor(msgspec.Struct, array_like=True, frozen=True):
    """A tensor of the folder that has no effect."""

    tensor: str
    reason: str


class AdapterReport(msgspec.Struct, array_like=True, frozen=True):
    """What a folder covers.

    Attributes:
        modules: what it changes, by name.
        num_bytes: of its tensors as the bank holds them, without the room that shorter ranks leave beside longer ones.
        skipped: what it holds without effect.
        warnings: what an operator may want to know.
    """

    modules: tuple[ModuleReport, ...]
    num_bytes: int
    skipped: tuple[SkippedTensor, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def max_rank(self) -> int:
        """Largest rank of any module."""
        return max(module.rank for module in self.modules)


class AdapterDescription(msgspec.Struct, array_like=True, frozen=True):
    """An adapter under a name.

    Attributes:
        digest: SHA-256 of everything that its answers depend on.
        kv_digest: of just those modules that influence cached keys and values; None where there are none.
    """

    name: str
    digest: bytes
    kv_digest: bytes | None
    report: AdapterReport
