"""A digest of the base model's weights, for the root of all KV block keys: equal files, equal keys in every replica.

Called once at start by `engine.build`. Reads the safetensors files and config.json as bytes; knows nothing of tensors.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PIECE_BYTES = 64 * 2**20


def weights_digest(folder: Path) -> bytes:
    """SHA-256 over the SHA-256 of each piece of 64 MiB, file by file in order of their names.

    Pieces are hashed on all cores: the whole of a large model takes as long as reading it.
    """
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    pieces = [(path, start) for path in files for start in range(0, path.stat().st_size, _PIECE_BYTES)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = list(pool.map(_digest_piece, pieces))
    whole = hashlib.sha256()
    for (path, start), digest in zip(pieces, digests, strict=True):
        whole.update(f"{path.name}\0{start}\0".encode() + digest)
    return whole.digest()


def _digest_piece(piece: tuple[Path, int]) -> bytes:
    path, start = piece
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(_PIECE_BYTES)).digest()
