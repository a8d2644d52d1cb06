"""What config.json means for each family, in both dialects, and what stops the start."""

import pytest
import transformers

from shared.modeling.config import DecoderConfig, LayerKind, read_decoder_config
from shared.modeling.families import FAMILIES
from shared.settings.errors import ModelFolderError

SIZES = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OF_TEXT = [
    name for name in FAMILIES if name != "Qwen2VLTextModel"
]  # whose sections fit neither these heads nor a scaling
CONFIG_CLASSES = {name: getattr(transformers, name.removesuffix("ForCausalLM") + "Config") for name in OF_TEXT}


def read(architecture: str, **changes) -> DecoderConfig:
    return read_decoder_config({"architectures": [architecture], **SIZES, **changes})


@pytest.mark.parametrize("architecture", OF_TEXT)
def test_absent_keys_mean_what_they_mean_in_transformers(architecture):
    needed = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    needed.update(hidden_size=1280, num_attention_heads=32)
    ours = read_decoder_config({"architectures": [architecture], **needed})
    theirs = CONFIG_CLASSES[architecture](**needed)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 1280 // 32)
    assert ours.context_len == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.has_tied_head == theirs.tie_word_embeddings
    assert ours.rope.theta == theirs.default_theta
    window = theirs.sliding_window if architecture == "MistralForCausalLM" else None
    assert ours.windows == (window,)
    assert [kind.has_rope for kind in ours.layers] == [
        bool(flag) for flag in getattr(theirs, "no_rope_layers", [1, 1, 1, 1])
    ]


@pytest.mark.parametrize("architecture", OF_TEXT)
def test_both_dialects_mean_the_same(architecture):
    newer = read(
        architecture, dtype="bfloat16", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    )
    older = read(architecture, torch_dtype="bfloat16", rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert newer == older
    assert newer.dtype == "bfloat16"
    assert newer.rope.theta == 500.0


def test_biases_by_family():
    def biases(config: DecoderConfig) -> tuple[bool, bool, bool]:
        return config.has_qkv_bias, config.has_o_bias, config.has_mlp_bias

    assert biases(read("LlamaForCausalLM")) == (False, False, False)
    assert biases(read("LlamaForCausalLM", attention_bias=True)) == (True, True, False)
    assert biases(read("LlamaForCausalLM", mlp_bias=True)) == (False, False, True)
    assert biases(read("MistralForCausalLM")) == (False, False, False)
    assert biases(read("Qwen2ForCausalLM")) == (True, False, False)
    assert biases(read("Qwen3ForCausalLM", attention_bias=True)) == (True, True, False)


def test_only_qwen3_normalises_heads():
    assert [name for name in OF_TEXT if read(name).has_qk_norm] == ["Qwen3ForCausalLM"]


def window_of_layers(config: DecoderConfig) -> list[int | None]:
    return [config.windows[kind.window_index] for kind in config.layers]


def test_windows_by_family():
    qwen = {"use_sliding_window": True, "sliding_window": 8}
    kinds = ["sliding_attention", "full_attention"] * 2
    assert window_of_layers(read("LlamaForCausalLM")) == [None] * 4
    assert window_of_layers(read("LlamaForCausalLM", sliding_window=8, use_sliding_window=False)) == [None] * 4
    assert window_of_layers(read("MistralForCausalLM", sliding_window=8)) == [8] * 4
    assert window_of_layers(read("MistralForCausalLM", sliding_window=None)) == [None] * 4
    assert window_of_layers(read("Qwen2ForCausalLM", sliding_window=8, max_window_layers=0)) == [None] * 4
    assert window_of_layers(read("Qwen2ForCausalLM", **qwen, max_window_layers=3)) == [None, None, None, 8]
    assert window_of_layers(read("Qwen2ForCausalLM", **qwen, max_window_layers=0)) == [8] * 4
    assert window_of_layers(read("Qwen2ForCausalLM", **qwen)) == [None] * 4  # max_window_layers is 28
    assert window_of_layers(read("Qwen3ForCausalLM", **qwen, layer_types=kinds)) == [8, None, 8, None]
    assert read("Qwen3ForCausalLM", **qwen, layer_types=kinds).windows == (8, None)


def test_layers_without_rotation():
    assert read("SmolLM3ForCausalLM").layers[3] == LayerKind(0, has_rope=False)
    config = read("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 1, 0, 1])
    assert [kind.has_rope for kind in config.layers] == [False, True, True, False]
    assert not any(kind.has_rope for kind in read("SmolLM3ForCausalLM", no_rope_layer_interval=1).layers)


def test_the_context_of_yarn_is_its_original_length_times_its_factor():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read("Qwen2ForCausalLM", max_position_embeddings=512, rope_scaling=yarn).context_len == 2048
    assert read("Qwen2ForCausalLM", max_position_embeddings=4096, rope_scaling=yarn).context_len == 4096
    linear = {"rope_type": "linear", "factor": 4.0}
    assert read("LlamaForCausalLM", max_position_embeddings=512, rope_scaling=linear).context_len == 512


REFUSED = {
    "quantization_config": ({"quant_method": "gptq", "bits": 4}, "quantised weights .*gptq"),
    "compression_config": ({"format": "int-quantized"}, "quantised weights .*compression_config"),
    "hidden_act": ("gelu", "hidden_act gelu"),
    "embedding_multiplier": (12.0, "embedding_multiplier"),
    "residual_multiplier": (0.22, "residual_multiplier"),
    "attention_multiplier": (0.0078125, "attention_multiplier"),
    "logits_scaling": (8.0, "logits_scaling"),
    "final_logit_softcapping": (30.0, "final_logit_softcapping"),
    "attn_logit_softcapping": (50.0, "attn_logit_softcapping"),
    "query_pre_attn_scalar": (256, "query_pre_attn_scalar"),
    "mup": (True, "mup"),
    "qk_layernorm": (True, "qk_layernorm"),
    "num_experts": (8, "num_experts"),
    "num_local_experts": (8, "num_local_experts"),
    "is_causal": (False, "is_causal"),
    "no_rope_layers": ([1, 1, 1, 0], "no_rope_layers"),
    "sliding_window": (64, "sliding_window"),
    "layer_types": (["chunked_attention"] * 4, "layer_types"),
    "partial_rotary_factor": (0.5, "partial_rotary_factor"),
    "num_hidden_layers": (0, "num_hidden_layers is 0"),
    "hidden_size": ("64", "hidden_size is '64'"),
    "intermediate_size": (None, "no number intermediate_size"),
    "num_key_value_heads": (3, "4 attention heads cannot share 3"),
    "attention_bias": ("yes", "attention_bias is 'yes'"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_change_the_numbers_is_refused_by_name(key):
    value, message = REFUSED[key]
    with pytest.raises(ModelFolderError, match=message):
        read("LlamaForCausalLM", **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("logits_scaling", 1.0), ("final_logit_softcapping", None), ("qk_layernorm", False), ("num_experts", 0)],
)
def test_values_that_say_nothing_are_not_refused(key, value):
    assert read("LlamaForCausalLM", **{key: value}) == read("LlamaForCausalLM")


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("MistralForCausalLM", {"layer_types": ["full_attention"] * 4}, "layer_types"),
        ("MistralForCausalLM", {"use_sliding_window": False}, "use_sliding_window"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "use_sliding_window or sliding_window"),
        ("Qwen2ForCausalLM", {"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ("Qwen2ForCausalLM", {"layer_types": ["full_attention"]}, "each of 4 layers"),
        ("SmolLM3ForCausalLM", {"use_sliding_window": True, "sliding_window": 8}, "without layer_types"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, "each of 4 layers"),
    ],
)
def test_layouts_of_windows_beyond_the_family_are_refused(architecture, changes, message):
    with pytest.raises(ModelFolderError, match=message):
        read(architecture, **changes)


@pytest.mark.parametrize("names", [["MixtralForCausalLM"], ["Qwen3MoeForCausalLM"], [], None])
def test_an_unknown_architecture_is_named_with_those_that_are_known(names):
    with pytest.raises(
        ModelFolderError, match=rf"{(names or ['none'])[0]}.*not supported; supported: LlamaForCausalLM"
    ):
        read_decoder_config({"architectures": names, **SIZES})
