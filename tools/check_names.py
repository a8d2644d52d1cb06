"""`python -m tools.check_names`: no file or folder has a name that says nothing about what is in it.

Run by `make lint`. Such a file becomes the home of everything that has none.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.source_files import ROOT, source_files

FORBIDDEN = frozenset({"utils", "common", "helpers", "misc", "base_utils"})


def main(root: Path = ROOT) -> int:
    """Print each path with a forbidden name in it; answers the exit code."""
    paths = [path.relative_to(root) for path in source_files(root)]
    found = [path for path in paths if FORBIDDEN & {part.split(".")[0] for part in path.parts}]
    for path in found:
        print(
            f"{path}: name it, and its folder, for the concept that is in it; not one of {', '.join(sorted(FORBIDDEN))}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
