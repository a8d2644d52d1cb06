"""Which folder each adapter's name stands for, and the tensors and descriptions of what was read from there.

Owned by `engine.adapter_lifecycle`, and filled by `engine.adapters` at the start. Keeps host memory in step with the ledger; reads
no file. A name that was given by a flag or by an administrator goes before a folder below a root that would have the same.
"""

from collections.abc import MutableMapping

import msgspec

from services.generator.adapters.packed import PackedAdapter
from services.generator.core.adapter_version import AdapterVersion
from services.generator.core.adapters import AdapterDescription, describe
from services.generator.engine.adapter_loader import AdapterPlace
from services.generator.engine.adapter_scanner import FoundAdapter, Scan
from services.generator.scheduler.adapter_registry import AdapterRegistry
from shared.observability.logging import get_logger

log = get_logger(__name__)


class AdapterCatalog:
    """All names.

    Args:
        tensors: host memory, by version id; the runner copies from there.
        descriptions: by version id.
    """

    def __init__(
        self,
        registry: AdapterRegistry,
        tensors: MutableMapping[int, PackedAdapter],
        descriptions: MutableMapping[int, AdapterDescription],
    ) -> None:
        self._registry = registry
        self._tensors = tensors
        self._descriptions = descriptions
        self._places: dict[AdapterVersion, AdapterPlace] = {}
        self._listed: dict[str, FoundAdapter] = {}

    def place(self, version: AdapterVersion) -> AdapterPlace:
        """Where its files are."""
        return self._places[version]

    def register(self, name: str, place: AdapterPlace, description: AdapterDescription) -> AdapterVersion:
        """Serve an adapter that is read when it is first wanted."""
        version = self._registry.register(name)
        self._places[version] = place
        self._descriptions[version.version_id] = description
        return version

    def serve(self, name: str, place: AdapterPlace, adapter: PackedAdapter) -> AdapterVersion:
        """Serve what was just read, for which there is room in host memory."""
        digest = adapter.digest.hex()
        version = self._registry.add(name, adapter.kv_digest, digest=digest, num_bytes=adapter.num_bytes)
        self._keep(version, place, adapter)
        return version

    def fill(self, version: AdapterVersion, place: AdapterPlace, adapter: PackedAdapter) -> None:
        """The same for a version that was on disk alone."""
        digest = adapter.digest.hex()
        self._registry.fill(version, adapter.kv_digest, digest=digest, num_bytes=adapter.num_bytes)
        self._keep(version, place, adapter)

    def move(self, version: AdapterVersion, place: AdapterPlace) -> None:
        """The same content was found elsewhere; it is read from there the next time."""
        self._places[version] = place

    def enter_scan(self, scan: Scan) -> None:
        """Serve what is below the roots, and nothing that is there no more."""
        for name in self._listed.keys() - scan.found.keys():
            version = self._registry.find(name)
            if version is not None and self._places[version] == self._listed[name].place:
                self._registry.remove(name)
        self._listed = scan.found
        for name, found in scan.found.items():
            version = self._registry.find(name)
            if version is None:
                self._list(name)
            elif not version.is_in_host and self._places[version] == found.place:
                self._describe(version, found.description)

    def tidy(self) -> None:
        """Free the host memory that the ledger has let go of; what is left of a name is then the folder below a root."""
        self._free()
        for version in self._registry.take_gone():
            del self._places[version], self._descriptions[version.version_id]
            if version.name in self._listed and self._registry.find(version.name) is None:
                self._list(version.name)

    def _keep(self, version: AdapterVersion, place: AdapterPlace, adapter: PackedAdapter) -> None:
        self._free()  # an older content of the same version may be among what was evicted for it
        self._places[version] = place
        self._tensors[version.version_id] = adapter
        known = describe(version.name, place.folder, adapter.report)
        # What the headers told is less: shorter ranks leave room beside longer ones, and there is a table.
        self._descriptions[version.version_id] = msgspec.structs.replace(known, num_bytes=adapter.num_bytes)
        for warning in adapter.warnings:
            log.warning("adapter_warning", name=version.name, warning=warning)
        log.info("adapter_loaded", name=version.name, digest=adapter.digest.hex()[:12], max_rank=adapter.max_rank)

    def _free(self) -> None:
        for version_id in self._registry.take_freed():
            del self._tensors[version_id]

    def _list(self, name: str) -> None:
        """Serve a folder below a root, unless requests still run on what had its name."""
        if not any(version.name == name for version in self._registry.retired()):
            found = self._listed[name]
            self.register(name, found.place, found.description)

    def _describe(self, version: AdapterVersion, description: AdapterDescription) -> None:
        if self._descriptions[version.version_id] != description:
            self._descriptions[version.version_id] = description
            self._registry.touch(version)
