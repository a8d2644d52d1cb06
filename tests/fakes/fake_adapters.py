"""Adapters without numbers: a disk of contents that change, a loader that reads late, a device that knows what was copied."""

import dataclasses

import torch

from services.generator.adapters.packed import PackedAdapter, PackedStack
from services.generator.core.adapters import AdapterReport, ModuleReport
from services.generator.core.plan import AdapterCopy
from services.generator.engine.adapter_loader import AdapterPlace, ReadAdapter, ReadResult
from shared.errors import InvalidRequestError
from tests.fakes.fake_runner import FakeRunner

NUM_BYTES = 8


def make_packed(content: int) -> PackedAdapter:
    """An adapter whose digest says `content`."""
    part = torch.zeros(1)
    report = AdapterReport((ModuleReport("model.layers.0.self_attn.q_proj", 4, 1.0),), NUM_BYTES)
    digest = content.to_bytes(32, "big")
    return PackedAdapter({"qkv": PackedStack(0, part, part)}, torch.zeros(2, 0), digest, digest, report)


def content_of(digest: str) -> int:
    return int(digest, 16)


class NoCopies:
    """Of a device that copies in no time."""

    num_copied_bytes = 0

    def copy_seconds(self) -> float:
        return 0.0


class FakeLoader:
    """Reads `disk[path]` when `deliver` is called, which is then a result; a path that is not there is an error."""

    def __init__(self, disk: dict[str, int]) -> None:
        self.disk = disk
        self.jobs: list = []
        self.results: list[ReadResult] = []

    @property
    def num_open(self) -> int:
        return len(self.jobs) + len(self.results)

    @property
    def has_results(self) -> bool:
        return bool(self.results)

    def submit(self, job, on_done) -> None:
        self.jobs.append(job)

    def deliver(self) -> None:
        for job in self.jobs:
            place = AdapterPlace(job.place, None) if isinstance(job.place, str) else job.place
            content = self.disk.get(place.folder)
            outcome = InvalidRequestError("is gone") if content is None else ReadAdapter(place, make_packed(content))
            self.results.append(ReadResult(job, outcome, 0.5))
        self.jobs = []

    def take(self) -> list[ReadResult]:
        results, self.results = self.results, []
        return results

    def wait(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class _Watched:
    """A late result that checks that what its step read was kept until now."""

    def __init__(self, inner, check) -> None:
        self._inner = inner
        self._check = check

    def result(self):
        self._check()
        return self._inner.result()


class AdapterRunner(FakeRunner):
    """Copies contents from host memory into slots; whatever a step reads must stay in host memory until it is committed."""

    def __init__(self, tensors: dict[int, PackedAdapter], *sizes: int) -> None:
        super().__init__(*sizes)
        self._tensors = tensors
        self._versions: dict[int, int] = {}
        self._reading: dict[int, PackedAdapter] = {}

    def execute(self, plan):
        self._versions.update({copy.slot: copy.version_id for copy in plan.adapter_copies})
        copies = []
        for copy in plan.adapter_copies:
            content = int.from_bytes(self._tensors[copy.version_id].digest, "big")
            self.kv_ids[content] = content + 1
            copies.append(AdapterCopy(copy.slot, content))
        used = {self._versions[slot] for slot in plan.adapter_slots.tolist() if slot >= 0}
        self._reading = {version_id: self._tensors[version_id] for version_id in used}
        return super().execute(dataclasses.replace(plan, adapter_copies=copies))

    def sample(self, step, masks):
        reading = self._reading

        def check() -> None:
            for version_id, tensors in reading.items():
                assert self._tensors.get(version_id) is tensors, "host memory was freed under a plan in flight"

        return _Watched(super().sample(step, masks), check)
