"""Which block holds the KV of which content: a map from block keys to block ids, and back.

Owned by the KVCacheManager, which decides when an entry comes and goes. Knows no sequences and no counts.
"""

from collections.abc import Iterable


class PrefixCache:
    """A one-to-one map; a key that is there already keeps the block it has."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._key_of

    def find_run(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the leading `keys` that are all there."""
        block_ids: list[int] = []
        for key in keys:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def insert(self, key: bytes, block_id: int) -> None:
        """Remember that `block_id` has the content `key`, unless another block has it or it has another key."""
        if key not in self._block_of and block_id not in self._key_of:
            self._block_of[key] = block_id
            self._key_of[block_id] = key

    def drop(self, block_id: int) -> None:
        """Forget what `block_id` holds."""
        key = self._key_of.pop(block_id, None)
        if key is not None:
            del self._block_of[key]

    def clear(self) -> None:
        """Forget everything."""
        self._block_of.clear()
        self._key_of.clear()

    def is_consistent(self) -> bool:
        """Whether both directions agree."""
        return {block: key for key, block in self._block_of.items()} == self._key_of
