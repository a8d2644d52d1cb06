"""Rotation by three positions against that of transformers' Qwen2-VL, and what of its configs is refused."""

import pytest
import torch
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding, apply_rotary_pos_emb

from shared.modeling.rope import apply_rope, rope_table, sectioned_rows
from shared.modeling.rope_config import read_rope_config
from shared.settings.errors import ModelFolderError

HEAD_DIM, SECTIONS = 32, (3, 5, 8)


def read(declared, key="rope_scaling"):
    return read_rope_config({key: declared}, HEAD_DIM, 1_000_000.0, 4096, default_sections=(4, 6, 6))


@pytest.fixture
def table():
    return rope_table(read({"type": "mrope", "mrope_section": list(SECTIONS)}), 64, torch.float32, torch.device("cpu"))


def test_rotation_equals_transformers(table):
    random = torch.Generator().manual_seed(0)
    positions = torch.randint(0, 64, (3, 20), generator=random)
    q, k = (torch.randn(20, heads, HEAD_DIM, generator=random) for heads in (4, 2))
    parameters = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": list(SECTIONS)}
    config = Qwen2VLTextConfig(hidden_size=64, num_attention_heads=2, rope_parameters=parameters)
    cos, sin = Qwen2VLRotaryEmbedding(config)(q, positions[:, None])
    expected = apply_rotary_pos_emb(q[None], k[None], cos, sin, unsqueeze_dim=2)
    rows = sectioned_rows(table, positions, SECTIONS)
    for ours, theirs in zip((apply_rope(q, rows), apply_rope(k, rows)), expected, strict=True):
        assert (ours - theirs[0]).abs().max() < 1e-5


def test_text_has_the_ordinary_rows(table):
    positions = torch.tensor([0, 7, 63])
    assert torch.equal(sectioned_rows(table, positions.expand(3, 3), SECTIONS), table[positions])


@pytest.mark.parametrize(
    ("declared", "key", "sections"),
    [
        ({"type": "mrope", "mrope_section": list(SECTIONS)}, "rope_scaling", SECTIONS),
        ({"type": "default", "rope_type": "default", "mrope_section": list(SECTIONS)}, "rope_scaling", SECTIONS),
        ({"rope_type": "default", "mrope_section": list(SECTIONS), "rope_theta": 1e6}, "rope_parameters", SECTIONS),
        (None, "rope_scaling", (4, 6, 6)),
    ],
)
def test_sections_in_every_dialect(declared, key, sections):
    config = read(declared, key)
    assert (config.sections, config.kind, config.theta) == (sections, "default", 1e6)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"type": "mrope", "mrope_section": [3, 5]}, "not three positive whole numbers"),
        ({"type": "mrope", "mrope_section": [8, 8, 0]}, "not three positive whole numbers"),
        ({"type": "mrope", "mrope_section": [8, 4.0, 4]}, "not three positive whole numbers"),
        ({"type": "mrope", "mrope_section": [3, 5, 9]}, "does not add up to 16 pairs"),
        ({"type": "linear", "factor": 2.0, "mrope_section": list(SECTIONS)}, "linear together with mrope_section"),
        ({"type": "mrope", "mrope_section": list(SECTIONS), "mrope_interleaved": True}, "mrope_interleaved is not"),
    ],
)
def test_other_sections_are_refused(declared, message):
    with pytest.raises(ModelFolderError, match=message):
        read(declared)


def test_families_without_sections_refuse_them():
    with pytest.raises(ModelFolderError, match="rope scaling mrope is not supported"):
        read_rope_config({"rope_scaling": {"type": "mrope", "mrope_section": list(SECTIONS)}}, HEAD_DIM, 1e6, 4096)
