"""Fixtures that tests of several parts need: where the embedded models are.

Found by pytest for every test below this folder.
A fixture must fail, never skip, when something that the repository can make is missing.
"""

from pathlib import Path

import pytest

from shared.settings.threads import set_thread_environment
from tools.prepare_models.install import is_prepared
from tools.prepare_models.recipes import RECIPES

set_thread_environment(0)  # before any test loads torch: threads that spin while they wait slow everything else down


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder with the embedded models, each complete and made by this checkout's recipes."""
    directory = Path(__file__).parents[1] / "models"
    missing = [recipe.name for recipe in RECIPES if not is_prepared(recipe, directory)]
    if missing:
        pytest.fail(f"{directory} lacks {', '.join(missing)}, or holds an older recipe's: run `make models`")
    return directory
