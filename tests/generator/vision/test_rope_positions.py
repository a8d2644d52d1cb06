"""Positions on three axes: worked by hand for grids with depth, and against transformers for mixes of images and text."""

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen2VLModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from services.generator.core.images import Pixels, PromptImage
from services.generator.core.rope_positions import rope_positions

_Grid = tuple[int, int, int]


def _image(position: int, grid: _Grid) -> PromptImage:
    return PromptImage(position, grid, b"", Pixels(0, 0, b""))


def test_text_alone_counts_on_all_axes() -> None:
    positions, delta = rope_positions(4, [])
    assert positions.dtype == np.int32
    assert positions.tolist() == [[0, 1, 2, 3]] * 3
    assert delta == 0


def test_image_between_texts() -> None:
    positions, delta = rope_positions(10, [_image(2, (1, 2, 3))])
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert delta == 7 - 10


def test_grid_with_depth() -> None:
    positions, delta = rope_positions(14, [_image(1, (3, 2, 2))])
    assert positions[0].tolist() == [0, *[1] * 4, *[2] * 4, *[3] * 4, 3]
    assert positions[1].tolist() == [0, *[1, 1, 2, 2] * 3, 3]
    assert positions[2].tolist() == [0, *[1, 2, 1, 2] * 3, 3]
    assert delta == 4 - 14


def test_temporal_step_is_rounded_down_and_counts_for_what_is_generated() -> None:
    # The example of transformers' documentation: 25 tokens a second, two frames a slice, one frame a second.
    positions, delta = rope_positions(12, [_image(0, (3, 2, 2))], temporal_step=50)
    assert positions[0].tolist() == [*[0] * 4, *[50] * 4, *[100] * 4]
    assert delta == 101 - 12
    positions, _ = rope_positions(4, [_image(0, (4, 1, 1))], temporal_step=1.5)
    assert positions[0].tolist() == [0, 1, 3, 4]


_MIXES: list[list[int | _Grid]] = [
    [5, (1, 3, 4), 7],
    [(1, 2, 2), 3],
    [4, (1, 5, 1)],
    [2, (1, 3, 2), 1, (1, 1, 6), 4, (1, 4, 4), 2],
    [1, (4, 2, 3), 5, (1, 2, 2)],
]


@pytest.fixture(scope="module")
def references() -> list[Qwen2VLModel | Qwen2_5_VLModel]:
    """Models without weights: only what they compute from their config is asked."""
    with torch.device("meta"):
        return [Qwen2VLModel(_small(Qwen2VLConfig)), Qwen2_5_VLModel(_small(Qwen2_5_VLConfig))]


def _small(kind: type[Qwen2VLConfig | Qwen2_5_VLConfig]) -> Qwen2VLConfig | Qwen2_5_VLConfig:
    text = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 8,
    }
    return kind(text_config=text, vision_config={"depth": 1})


@pytest.mark.parametrize("mix", _MIXES, ids=str)
def test_equals_transformers(references: list[Qwen2VLModel | Qwen2_5_VLModel], mix: list[int | _Grid]) -> None:
    types, images = [], []
    for part in mix:
        if isinstance(part, int):
            types += [0] * part
        else:
            images.append(_image(len(types), part))
            types += [1] * images[-1].num_rows
    ours, delta = rope_positions(len(types), images)
    grids = torch.tensor([[t, 2 * h, 2 * w] for t, h, w in (image.grid for image in images)])
    for model in references:
        theirs, deltas = model.get_rope_index(torch.ones(1, len(types)).long(), torch.tensor([types]), grids)
        assert ours.tolist() == theirs[:, 0].tolist()
        assert delta == deltas.item()


def test_temporal_step_equals_transformers_for_video(references: list[Qwen2VLModel | Qwen2_5_VLModel]) -> None:
    types = [0] * 3 + [2] * 24 + [0] * 2
    theirs, deltas = references[1].get_rope_index(
        torch.ones(1, len(types)).long(),
        torch.tensor([types]),
        video_grid_thw=torch.tensor([[4, 4, 6]]),
        second_per_grid_ts=torch.tensor([0.4]),
    )
    step = 0.4 * references[1].config.vision_config.tokens_per_second
    ours, delta = rope_positions(len(types), [_image(3, (4, 2, 3))], step)
    assert ours.tolist() == theirs[:, 0].tolist()
    assert delta == deltas.item()
