"""The table of API fields: it is the contracts', complete down to the objects inside, and the check notices an old one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.contracts.chat import ChatRequest
from tools import api_fields
from tools.source_files import ROOT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / api_fields.PAGE, tmp_path / api_fields.PAGE)
    return tmp_path


def test_the_page_of_the_repository_is_the_contracts(root: Path) -> None:
    assert api_fields.main(["--check"], root) == 0


def test_an_old_or_missing_page_is_noticed_and_written_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / api_fields.PAGE
    path.write_text(path.read_text().replace("| `temperature` | supported |", "| `temperature` | harmless |"))
    assert api_fields.main(["--check"], root) == 1
    path.unlink()
    assert api_fields.main(["--check"], root) == 1
    assert "make docs" in capsys.readouterr().out
    assert api_fields.main([], root) == 0
    assert api_fields.main(["--check"], root) == 0


def test_rows_tell_list_values_and_note() -> None:
    lines = api_fields.page().splitlines()
    assert '| `tool_choice` | refused | string or object | `"none"` is taken |' in lines
    assert (
        "| `top_p` | supported | number, > 0 and ≤ 1 | 1 unless the model's `generation_config.json` says otherwise |"
        in lines
    )
    assert "| `store` | harmless | boolean |  |" in lines


def test_every_field_and_every_object_inside_has_its_place() -> None:
    page = api_fields.page()
    chat = page.partition("## POST `/v1/chat/completions`")[2].partition("## ")[0]
    assert all(chat.count(f"| `{name}` |") == 1 for name in ChatRequest.model_fields)
    objects = {
        name for contract in api_fields.ENDPOINTS.values() for name in contract.model_json_schema().get("$defs", {})
    }
    assert {contract.__name__ for contract in api_fields.OBJECTS} == objects
