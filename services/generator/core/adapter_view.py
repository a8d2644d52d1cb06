"""The API process's picture of the engine's adapters, as fresh as the last message about them.

Owned by `EngineHandle`, read by routes and metrics. Must not import torch.
"""

from services.generator.core.adapters import AdapterCounts, AdapterState, BankContract, RejectedFolder
from services.generator.core.messages import AdapterChanges


class AdapterView:
    """All versions.

    Attributes:
        current: what requests may name, by name.
        bank: None where the engine takes no adapters.
    """

    def __init__(self) -> None:
        self._versions: dict[int, AdapterState] = {}
        self.current: dict[str, AdapterState] = {}
        self.counts = AdapterCounts()
        self.rejects: list[RejectedFolder] = []
        self.bank: BankContract | None = None

    def take(self, changes: AdapterChanges) -> None:
        """Enter what changed."""
        for version_id in changes.gone:
            self._drop(self._versions.pop(version_id, None))
        for state in changes.changed:
            self._drop(self._versions.get(state.version_id))
            self._versions[state.version_id] = state
        for state in changes.changed:
            if state.is_current:
                self.current[state.name] = state
        self.counts = changes.counts
        self.rejects = self.rejects if changes.rejects is None else changes.rejects

    def versions(self) -> list[AdapterState]:
        """All there are, by name, those too that only older requests still use."""
        return sorted(self._versions.values(), key=lambda state: (state.name, state.version_id))

    def _drop(self, state: AdapterState | None) -> None:
        """What was current may not be any more."""
        if state is not None and self.current.get(state.name) is state:
            del self.current[state.name]
