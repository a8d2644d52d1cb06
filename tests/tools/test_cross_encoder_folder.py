"""The reranker's folder, on a tiny BERT: peft merges the same delta, and sentence-transformers reads what comes out."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.shared.modeling.tiny_bert import save_tiny_bert, save_tokenizer, set_json
from tools.prepare_models.cross_encoder_folder import build_cross_encoder_folder
from tools.prepare_models.errors import PrepareError

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers

PAIRS = [("w50 w51", "w60 w61 w62"), ("w50", "w70 w9 w9 w8 w90"), ("w4 w5 w6", "w4")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_bert(tmp_path_factory.mktemp("encoder"))
    save_tokenizer(folder)
    set_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    for name in ("special_tokens_map.json", "modules.json", "sentence_bert_config.json"):
        (folder / name).write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]\n")
    return folder


@pytest.fixture(scope="module")
def delta(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every matrix changed, its B made as large as its A, in half precision."""
    lora = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=3,
        lora_alpha=7,
        target_modules=["query", "key", "value", "dense"],
        modules_to_save=["classifier"],
        init_lora_weights=False,
    )
    base = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=1)
    torch.nn.init.normal_(base.classifier.bias)
    folder = tmp_path_factory.mktemp("delta")
    get_peft_model(base, lora).half().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def merged_by_peft(encoder: Path, delta: Path) -> torch.nn.Module:
    base = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=1)
    return PeftModel.from_pretrained(base, delta).merge_and_unload().eval()


@pytest.fixture(scope="module")
def folder(encoder: Path, delta: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merged")
    build_cross_encoder_folder(encoder, delta, folder)
    return folder


def test_weights_are_those_that_peft_merges(folder: Path, encoder: Path, merged_by_peft: torch.nn.Module) -> None:
    ours, theirs, before = (
        load_file(folder / "model.safetensors"),
        merged_by_peft.state_dict(),
        load_file(encoder / "model.safetensors"),
    )
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)
    changed = "encoder.layer.1.output.dense.weight"
    assert not torch.allclose(ours[f"bert.{changed}"], before[changed], atol=0.01)


def test_cross_encoder_reads_the_folder(folder: Path, encoder: Path, merged_by_peft: torch.nn.Module) -> None:
    rows = AutoTokenizer.from_pretrained(encoder)(
        *map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        expected = torch.sigmoid(merged_by_peft(**rows).logits[:, 0])
    assert CrossEncoder(str(folder), device="cpu").predict(PAIRS) == pytest.approx(expected.numpy(), abs=1e-5)


def test_nothing_makes_an_embedder_of_it(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }


@pytest.mark.parametrize(("key", "value"), [("use_rslora", True), ("use_dora", True), ("alpha_pattern", {"query": 2})])
def test_another_kind_of_delta_is_refused(encoder: Path, delta: Path, tmp_path: Path, key: str, value: object) -> None:
    other = tmp_path / "delta"
    other.mkdir()
    (other / "adapter_model.safetensors").write_bytes((delta / "adapter_model.safetensors").read_bytes())
    config = json.loads((delta / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(PrepareError, match=key):
        build_cross_encoder_folder(encoder, other, tmp_path)


def test_a_delta_of_a_larger_model_is_refused(delta: Path, tmp_path: Path) -> None:
    smaller = save_tiny_bert(tmp_path / "encoder", num_hidden_layers=1)
    with pytest.raises(PrepareError, match=r"bert\.encoder\.layer\.1\..* lacks"):
        build_cross_encoder_folder(smaller, delta, tmp_path)
