"""The table of cosines and sines against the rotary embedding of transformers, and what stops the start."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from shared.modeling.rope import apply_rope, rope_table
from shared.modeling.rope_config import read_rope_config
from shared.settings.errors import ModelFolderError

HEAD_DIM, MAX_POSITIONS = 32, 4096
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
LONG = {"short_factor": [1 + 0.1 * n for n in range(16)], "long_factor": [20.0] * 16}
CASES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
    "yarn_betas": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.8,
        "mscale_all_dim": 0.5,
    },
    "yarn_given_attention": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 1.25,
    },
    "yarn_without_ramp": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4},
    "longrope": {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 4096},
    "longrope_factor": {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 4096, "factor": 8.0},
    "longrope_given_attention": {
        "rope_type": "longrope",
        **LONG,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.5,
    },
}


def read(parameters, **outer):
    return read_rope_config({"rope_parameters": parameters, **outer}, HEAD_DIM, 10000.0, MAX_POSITIONS)


@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
@pytest.mark.parametrize("case", CASES)
def test_the_table_is_that_of_transformers_bit_for_bit(case, theta):
    parameters = {**CASES[case], "rope_theta": theta}
    rope = read(parameters)
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters=dict(parameters),
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(MAX_POSITIONS)[None])
    half = HEAD_DIM // 2
    ours = rope_table(rope, MAX_POSITIONS, torch.float32, torch.device("cpu"))
    assert torch.equal(ours, torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1))


@pytest.mark.parametrize("case", CASES)
def test_the_older_dialect_gives_the_same(case):
    parameters = dict(CASES[case])
    newer = read({**parameters, "rope_theta": 500.0})
    parameters["type"] = parameters.pop("rope_type")
    older = {"rope_theta": 500.0, "rope_scaling": parameters}
    assert read_rope_config(older, HEAD_DIM, 10000.0, MAX_POSITIONS) == newer


def test_theta_is_that_of_the_family_where_the_folder_has_none():
    assert read({"rope_type": "default"}).theta == 10000.0
    assert read_rope_config({}, HEAD_DIM, 2e6, MAX_POSITIONS).theta == 2e6
    assert read_rope_config({"rope_theta": None, "rope_scaling": None}, HEAD_DIM, 2e6, MAX_POSITIONS).theta == 2e6


def test_which_laws_hold_up_to_which_length():
    limits = {case: read(CASES[case]).scaling.exact_len for case in ("default", "linear", "llama3", "yarn")}
    assert set(limits.values()) == {None}
    assert read(CASES["dynamic"]).scaling.exact_len == MAX_POSITIONS
    assert read({**CASES["dynamic"], "original_max_position_embeddings": 512}).scaling.exact_len == 512
    assert read({**CASES["longrope"], "original_max_position_embeddings": 512}).scaling.exact_len == 512
    assert read(CASES["longrope"], original_max_position_embeddings=1024).scaling.exact_len == 1024


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "proportional"}, "rope scaling proportional is not supported; supported: default, linear"),
        ({"rope_type": "linear"}, "rope scaling linear has no number factor"),
        ({"rope_type": "linear", "factor": "4"}, "factor is '4', not a number"),
        ({"rope_type": "linear", "factor": 0}, "factor is 0"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor is nan"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor 1.0 is not above"),
        ({"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 0.5}, "not a positive whole number"),
        ({"rope_type": "longrope", **LONG, "short_factor": [1.0]}, "1 short factors for 16 pairs"),
        ({"rope_type": "longrope", **LONG, "short_factor": "x"}, "short_factor is not a list of numbers"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_type": "default", "mrope_section": [8, 4, 4]}, "mrope_section is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention is not supported"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "truncate is 1, not true or false"),
        ("linear", "not an object"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(parameters, message):
    with pytest.raises(ModelFolderError, match=message):
        read(parameters)


def test_a_part_of_the_head_and_an_odd_head_are_refused():
    with pytest.raises(ModelFolderError, match="partial_rotary_factor"):
        read({}, partial_rotary_factor=0.25)
    with pytest.raises(ModelFolderError, match="head_dim 33 is odd"):
        read_rope_config({}, 33, 10000.0, MAX_POSITIONS)


def test_rotation_turns_pairs_by_their_angle():
    table = rope_table(read({}), 8, torch.float32, torch.device("cpu"))
    heads = torch.randn(8, 3, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    rotated = apply_rope(heads, table)
    pairs, turned = (torch.complex(*each.chunk(2, dim=-1)) for each in (heads, rotated))
    angles = torch.arange(8)[:, None] * 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    assert (turned - expected).abs().max() < 1e-5
