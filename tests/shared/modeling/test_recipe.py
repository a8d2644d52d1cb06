"""What a folder declares about encoding, in both dialects, and what stops the start.

Only the files beside the weights are needed here.
"""

from pathlib import Path
from typing import Any

import pytest

from shared.modeling.recipe import RecipeOverrides, read_recipe
from shared.settings.errors import StartError
from shared.text.prompts import Prompts
from tests.shared.modeling.tiny_bert import write_json

OLD = "sentence_transformers.models."
OLD_POOLING = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}


def write_folder(folder: Path, modules: list[str], pooling: dict[str, Any] | None = None, prefix: str = OLD) -> Path:
    entries = [
        {"idx": index, "name": str(index), "path": "" if index == 0 else f"{index}_{name}", "type": prefix + name}
        for index, name in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)
    if pooling is not None:
        write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


def test_the_old_dialect(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ["Transformer", "Pooling", "Normalize"], OLD_POOLING)
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    recipe = read_recipe(folder, RecipeOverrides())
    assert (recipe.pooling, recipe.is_normalized, recipe.is_lowercased) == (("mean",), True, True)
    assert recipe.prompts == Prompts({})
    assert recipe.shorter_dims == frozenset()


def test_the_new_dialect(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ["Transformer", "Pooling"], {"pooling_mode": "lasttoken"}, prefix="x.y.pooling.")
    prompts = {"query": "q: ", "passage": "p: ", "document": None}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    recipe = read_recipe(folder, RecipeOverrides())
    assert (recipe.pooling, recipe.is_normalized) == (("last",), False)
    assert recipe.prompts.by_kind() == {"text": "q: ", "query": "q: ", "document": "p: "}
    assert recipe.prompts.named("passage", param="prompt_name") == "p: "


def test_several_kinds_of_pooling(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "old", ["Transformer", "Pooling"], {**OLD_POOLING, "pooling_mode_max_tokens": True}
    )
    assert read_recipe(folder, RecipeOverrides()).pooling == ("max", "mean")
    folder = write_folder(tmp_path / "new", ["Transformer", "Pooling"], {"pooling_mode": ["mean", "weightedmean"]})
    assert read_recipe(folder, RecipeOverrides()).pooling == ("mean", "weightedmean")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"activation_function": "os.system"}, "os.system"),
        ({"use_residual": True}, "use_residual"),
        ({"module_input_name": "token_embeddings"}, "token_embeddings"),
        ({"in_features": None}, "in_features"),
        ({"scale": 2}, "scale"),
    ],
)
def test_a_dense_layer_of_another_kind_is_named(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    folder = write_folder(tmp_path, ["Transformer", "Pooling", "Dense"], OLD_POOLING)
    write_json(folder / "2_Dense" / "config.json", {"in_features": 4, "out_features": 2, **change})
    with pytest.raises(StartError, match=word):
        read_recipe(folder, RecipeOverrides())


def test_the_operator_is_obeyed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, ["Transformer", "Pooling", "Normalize"], OLD_POOLING)
    recipe = read_recipe(folder, RecipeOverrides("cls", False))
    assert (recipe.pooling, recipe.is_normalized) == (("cls",), False)


def test_a_plain_folder_asks_for_pooling(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--pooling"):
        read_recipe(tmp_path, RecipeOverrides())
    recipe = read_recipe(tmp_path, RecipeOverrides(pooling="mean"))
    assert (recipe.pooling, recipe.is_normalized, recipe.dense) == (("mean",), True, ())


@pytest.mark.parametrize(
    ("modules", "pooling", "word"),
    [
        (["Transformer", "Pooling", "LSTM", "Normalize"], OLD_POOLING, "LSTM"),
        (["Transformer", "Pooling", "Dense"], OLD_POOLING, "config.json"),
        (["Transformer", "Normalize", "Pooling"], OLD_POOLING, "Normalize → Pooling"),
        (["Pooling"], OLD_POOLING, "Pooling"),
        (["Transformer", "Pooling"], {"pooling_mode": "attention"}, "attention"),
        (["Transformer", "Pooling"], {"pooling_mode": []}, "nothing"),
        (["Transformer", "Pooling"], {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        (["Transformer", "Pooling"], None, "config.json"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, modules: list[str], pooling: dict[str, Any] | None, word: str
) -> None:
    with pytest.raises(StartError, match=word):
        read_recipe(write_folder(tmp_path, modules, pooling), RecipeOverrides())


def test_a_default_prompt_that_is_not_there(tmp_path: Path) -> None:
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "query"})
    with pytest.raises(StartError, match="query"):
        read_recipe(tmp_path, RecipeOverrides(pooling="mean"))


@pytest.mark.parametrize(
    ("config", "is_matryoshka", "expected"),
    [
        ({}, False, frozenset()),
        ({"is_matryoshka": True}, False, None),
        ({"matryoshka_dimensions": [8, 4]}, False, frozenset({4, 8})),
        ({"matryoshka_dimensions": [8, 4]}, True, None),
    ],
)
def test_lengths_to_which_vectors_may_be_cut(
    tmp_path: Path, config: dict[str, Any], is_matryoshka: bool, expected: frozenset[int] | None
) -> None:
    write_json(tmp_path / "config.json", config)
    overrides = RecipeOverrides(pooling="mean", is_matryoshka=is_matryoshka)
    assert read_recipe(tmp_path, overrides).shorter_dims == expected
