"""The tensors of adapters: all known versions in host memory, and the device's bank.

Owned by the engine's composition, used by the ModelRunner at the borders of a step. Decides nothing: plans say what is copied.
"""

import torch

from services.generator.adapters.packed import PackedAdapter
from services.generator.core.plan import StepPlan
from services.generator.runner.adapter_bank import AdapterBank
from services.generator.runner.copy_order import CopyOrder, ProgramOrder, StreamOrder


class AdapterStorage:
    """Both tiers.

    Attributes:
        versions: host memory by version id; the catalog of adapters writes it.
        num_copied_bytes: of adapters that were copied into slots.
    """

    def __init__(self, bank: AdapterBank, device: torch.device) -> None:
        self.bank = bank
        self.versions: dict[int, PackedAdapter] = {}
        self.num_copied_bytes = 0
        self._order: CopyOrder = StreamOrder(device) if device.type == "cuda" else ProgramOrder()

    def begin_step(self, plan: StepPlan) -> None:
        """Launch the copies that a plan asks for, and have the step that is launched next wait for those into its slots."""
        for copy in plan.adapter_copies:
            adapter = self.versions[copy.version_id]
            with self._order.copying(copy.slot):
                self.bank.install(copy.slot, adapter)
            self.num_copied_bytes += adapter.num_bytes
        self._order.begin_reading(plan.adapter_slots)

    def end_step(self, plan: StepPlan) -> None:
        """The plan's forward pass is launched."""
        self._order.end_reading(plan.adapter_slots)

    def copy_seconds(self) -> float:
        """Time that copies into slots took, of those that are done."""
        return self._order.seconds()
