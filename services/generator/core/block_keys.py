"""Identity of KV blocks by content: a hash chain over everything that determines a block's keys and values.

    key[i] = SHA-256(key[i-1], token ids of block i, images whose first row falls in block i)
    key[-1] = root: base weights, dtype, block size, the adapter's KV digest, the client's cache salt

Used by the KVCacheManager. Slot numbers, names and paths are never part of a key, so keys mean the same in every replica and
a new version under an old name never meets old KV. No second comparison of token ids backs the hash up: it is SHA-256.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image in a prompt: where its first row is, and a digest of pixels, grid and preprocessing."""

    position: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PrefixSalt:
    """What determines a sequence's KV besides the base model and the token ids.

    Attributes:
        adapter_digest: the adapter's KV digest; None for the base model and for adapters that influence no cached KV.
        cache_salt: a string of the client's that separates its prefixes from everyone else's.
        images: in order of position.
    """

    adapter_digest: bytes | None = None
    cache_salt: str | None = None
    images: tuple[ImageSpan, ...] = ()


class BlockKeys:
    """Computes keys for one pool.

    Args:
        base_digest: of the base model's weights.
        dtype: of keys and values.
        block_size: positions in a block.
    """

    def __init__(self, base_digest: bytes, dtype: str, block_size: int) -> None:
        self._base = _joined(b"trivium-kv-1", base_digest, dtype.encode(), struct.pack("<q", block_size))
        self._block_size = block_size
        self._generation = 0

    def start_generation(self) -> None:
        """Chains that begin from now on meet none that began before."""
        self._generation += 1

    def extend(self, keys: list[bytes], token_ids: list[int], salt: PrefixSalt) -> None:
        """Append the keys of the blocks that follow the `len(keys)` known ones.

        Args:
            keys: of the sequence's leading blocks; mutated.
            token_ids: the ids from the end of those blocks on; an incomplete last block is left out.
        """
        size = self._block_size
        parent = keys[-1] if keys else self._root(salt)
        first = len(keys) * size
        data = np.array(token_ids[: len(token_ids) // size * size], np.int32).tobytes()
        width = size * np.dtype(np.int32).itemsize
        for start in range(0, len(data), width):
            block = data[start : start + width]
            if salt.images:
                position = first + start // width * size
                block += _images(image for image in salt.images if position <= image.position < position + size)
            parent = hashlib.sha256(parent + block).digest()
            keys.append(parent)

    def _root(self, salt: PrefixSalt) -> bytes:
        adapter = salt.adapter_digest or b""
        client = b"" if salt.cache_salt is None else b"+" + salt.cache_salt.encode("utf-8", "surrogatepass")
        generation = struct.pack("<q", self._generation) if self._generation else b""
        return hashlib.sha256(_joined(self._base, adapter, client, generation)).digest()


def _images(images: Iterable[ImageSpan]) -> bytes:
    return b"".join(_joined(struct.pack("<q", image.position), image.digest) for image in images)


def _joined(*parts: bytes) -> bytes:
    """The parts with their lengths, so that no two lists of parts give the same bytes."""
    return b"".join(struct.pack("<q", len(part)) + part for part in parts)
