"""A LLaVA folder behind the engine, asked for text: the numbers of its decoder, and of adapters that `peft` put on it."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlavaForConditionalGeneration, MistralConfig

from services.generator.adapters.outline import inspect_adapter
from services.generator.adapters.peft_folder import load_adapter
from services.generator.core.end_tokens import read_end_token_ids
from services.generator.frontend.model_card import read_model_card
from shared.errors import InvalidRequestError
from shared.settings.model_folder import read_json
from tests.fakes.tiny_vision import AS_SINCE_4_52, IMAGE_TOKEN_ID, rename_tensors, save_tiny_llava
from tests.generator.adapters.conftest import target_of
from tests.generator.adapters.test_peft_parity import build

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks transformers
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]
TOKENS = [(17 * position) % 250 for position in range(40)]
DECODER_ONLY = r".*language_model.*\.(q_proj|v_proj|o_proj|down_proj)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llava(tmp_path_factory.mktemp("llava"), text={"eos_token_id": 257})


def make_adapter(base, folder, **options):
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": DECODER_ONLY, "init_lora_weights": False, **options}
    )
    get_peft_model(model, config).save_pretrained(folder)
    return folder


def reference_logits(base, adapter=None):
    model = LlavaForConditionalGeneration.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    with torch.inference_mode():
        return model.eval()(torch.tensor([TOKENS])).logits[0, :-1]


def error(engine, adapter, theirs):
    """Largest difference of log-probabilities, all of which are asked for, as a part of the largest logit."""
    (_,) = engine.generate([TOKENS], max_tokens=1, prompt_logprobs=IMAGE_TOKEN_ID + 1, adapters=[adapter])
    expected = torch.log_softmax(theirs, dim=-1)
    rows = [[dict(entry.top)[index] for index in range(IMAGE_TOKEN_ID + 1)] for entry in engine.prompt_logprobs[0]]
    return ((torch.tensor(rows) - expected).abs().max() / theirs.abs().max()).item()


def test_logits_are_those_of_the_reference_with_and_without_an_adapter(folder, tmp_path):
    adapter = make_adapter(folder, tmp_path / "adapter", rank_pattern={r"layers\.1\.self_attn\.q_proj": 2})
    plain, adapted = reference_logits(folder), reference_logits(folder, adapter)
    engine = build(folder, {"a": adapter})
    assert error(engine, None, plain) <= 1e-4
    assert error(engine, "a", adapted) <= 1e-4
    assert (adapted - plain).abs().max() > 0.01 * plain.abs().max(), "the adapter does nothing, so nothing was shown"


@pytest.mark.parametrize(
    ("old", "new"),
    [("model.language_model.", "language_model.model."), ("base_model.model.model.", "model."), ("", "")],
)
def test_all_names_that_modules_of_the_decoder_had_mean_the_same(folder, tmp_path, old, new):
    adapter, target = make_adapter(folder, tmp_path / "adapter"), target_of(folder)
    expected = load_adapter(adapter, target)
    path = adapter / "adapter_model.safetensors"
    save_file({name.replace(old, new, 1): tensor for name, tensor in load_file(path).items()}, path)
    packed = load_adapter(adapter, target)
    assert packed.digest == expected.digest
    assert len(packed.report.modules) == 8
    assert packed.report.modules[0].module == "model.language_model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("modules", [["q_proj"], "all-linear", r".*linear_1"])
def test_adapters_of_tower_and_projector_are_refused_by_name(folder, tmp_path, modules):
    adapter = make_adapter(folder, tmp_path / "adapter", target_modules=modules)
    for read in (inspect_adapter, load_adapter):
        with pytest.raises(
            InvalidRequestError, match=r"(vision_tower|multi_modal_projector)\..*lora_.*only modules of the decoder"
        ):
            read(adapter, target_of(folder))


def test_a_trained_projector_in_an_adapter_is_refused_and_a_copy_is_not(folder, tmp_path):
    adapter = make_adapter(folder, tmp_path / "adapter", modules_to_save=["multi_modal_projector"])
    report = load_adapter(adapter, target_of(folder)).report
    assert {skipped.reason.partition(" of ")[2] for skipped in report.skipped} == {
        f"multi_modal_projector.linear_{index}.{leaf}" for index in (1, 2) for leaf in ("weight", "bias")
    }
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("linear_1.bias"))
    save_file({**tensors, name: tensors[name] + 1}, path)
    with pytest.raises(InvalidRequestError, match=r"linear_1\.bias: differs from the base model's"):
        load_adapter(adapter, target_of(folder))


def test_the_embedding_s_copy_is_found_under_the_base_s_other_name(folder, tmp_path):
    base = save_tiny_llava(tmp_path / "base")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["embed_tokens", "lm_head"])
    tensors = load_file(adapter / "adapter_model.safetensors")
    for renamings in ((), AS_SINCE_4_52):
        rename_tensors(base, *renamings)
        report = load_adapter(adapter, target_of(base)).report
        assert {module.module for module in report.modules} == {"model.language_model.embed_tokens", "lm_head"}
        assert len(report.skipped) == sum("lora" not in name for name in tensors)


def test_the_api_process_reads_the_nested_config(folder):
    card = read_model_card(folder, "llava", None, IMAGE_TOKEN_ID + 1)
    assert (card.max_model_len, card.vocab_size) == (256, IMAGE_TOKEN_ID + 1)
    assert card.eos_token_ids == read_end_token_ids(folder) == {257}
    (folder / "generation_config.json").rename(folder / "kept.json")
    assert read_end_token_ids(folder) == {257}
    (folder / "kept.json").rename(folder / "generation_config.json")


def test_the_api_process_knows_the_context_length_that_a_nested_config_leaves_out(folder, tmp_path):
    config = read_json(folder / "config.json")
    del config["text_config"]["max_position_embeddings"]
    config["text_config"].update(architectures=["MistralForCausalLM"], model_type="mistral")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_card(tmp_path, "llava", None, 10).max_model_len == MistralConfig().max_position_embeddings
