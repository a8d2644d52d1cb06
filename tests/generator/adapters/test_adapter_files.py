"""The files of an adapter's folder: several of them, broken ones, ones elsewhere, and copies of base weights among the tensors."""

import json
import os
import shutil
import struct

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.generator.adapters import adapter_files
from services.generator.adapters.outline import inspect_adapter
from services.generator.adapters.peft_folder import load_adapter
from services.generator.engine.adapter_loader import find_below
from services.generator.engine.adapter_scanner import AdapterScanner
from shared.errors import InvalidRequestError
from tests.generator.adapters.conftest import make_adapter, target_of
from tests.shared.modeling.tiny_decoder import save_tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]
WEIGHTS, INDEX = "adapter_model.safetensors", "adapter_model.safetensors.index.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("peft")
    save_tiny(root / "base", "llama")
    modules = ["embed_tokens", "lm_head", "q_proj", "v_proj"]
    make_adapter(root / "base", root / "adapter", target_modules=modules)
    return root / "adapter", target_of(root / "base")


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "adapter")


@pytest.fixture
def target(made):
    return made[1]


def shard(folder):
    tensors = sorted(load_file(folder / WEIGHTS).items())
    (folder / WEIGHTS).unlink()
    where = {
        name: f"adapter_model-{1 + number % 2:05}-of-00002.safetensors" for number, (name, _) in enumerate(tensors)
    }
    for file in set(where.values()):
        save_file({name: tensor for name, tensor in tensors if where[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return where


def both_refuse(folder, target, root=None):
    """By name, before any value is read and when it is loaded, for the same reason; which file, key or tensor is at fault."""
    errors = []
    for read in (inspect_adapter, load_adapter):
        with pytest.raises(InvalidRequestError) as caught:
            read(folder, target, root)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert str(folder.parent) not in str(errors[0]), "a path of the machine"
    return errors[0].param


def test_several_files_are_one_adapter(folder, target):
    whole = load_adapter(folder, target)
    shard(folder)
    parts = load_adapter(folder, target)
    assert (parts.digest, parts.kv_digest, parts.report) == (whole.digest, whole.kv_digest, whole.report)


def test_a_missing_part_is_refused(folder, target):
    name = max(shard(folder).values())
    (folder / name).unlink()
    assert both_refuse(folder, target) == name


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "adapter_model.bin", 3])
def test_an_index_that_names_anything_else_is_refused(folder, target, file):
    where = shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {**where, "lm_head.lora_A.weight": file}}))
    with pytest.raises(InvalidRequestError) as caught:
        inspect_adapter(folder, target)
    assert caught.value.param == INDEX


def test_a_tensor_that_the_index_lists_and_no_file_holds_is_refused(folder, target):
    where = shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {**where, "lost": min(where.values())}}))
    assert both_refuse(folder, target) == INDEX


def test_a_part_that_comes_after_its_index_is_found_by_the_next_look(folder, target, tmp_path):
    name = max(shard(folder).values())
    shutil.move(folder / name, tmp_path / "late")
    scanner = AdapterScanner([folder.parent], target, "base", 1)
    assert [reject.reason for reject in scanner.scan().rejects] == [f"{name}: is missing"]
    shutil.move(tmp_path / "late", folder / name)
    assert list(scanner.scan().found) == [folder.name]


def test_a_file_of_the_same_time_and_size_is_another_one(folder, target):
    scanner, path = AdapterScanner([folder.parent], target, "base", 1), folder / WEIGHTS
    content, status = path.read_bytes(), path.stat()
    path.write_bytes(bytes(len(content)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(scanner.scan().rejects) == 1
    changed_at = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == changed_at:  # clocks of file systems are coarse
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(scanner.scan().found) == [folder.name]


def test_a_tensor_in_two_files_is_refused(folder, target):
    where = shard(folder)
    first, second = sorted(set(where.values()))
    tensors = load_file(folder / first)
    save_file({**load_file(folder / second), min(tensors): tensors[min(tensors)]}, folder / second)
    assert both_refuse(folder, target) == min(tensors)


def header(**tensors):
    content = json.dumps(tensors).encode()
    return struct.pack("<Q", len(content)) + content


def entry(shape, begin, end):
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 60),
        header(a=entry([2], 0, 8)),
        header(a=entry([1 << 62, 8], 0, 8)) + bytes(8),
        header(a=entry([2], 8, 0)) + bytes(8),
        header(a=entry([1], 0, 8), b=entry([2], 4, 12)) + bytes(12),
        header(a=entry([-1], 0, 8)) + bytes(8),
    ],
    ids=["empty", "huge_header", "header_past_end", "no_data", "overflow", "backwards", "overlap", "negative"],
)
def test_hostile_files_are_refused(folder, target, content):
    (folder / WEIGHTS).write_bytes(content)
    assert both_refuse(folder, target) == WEIGHTS


def test_a_file_cut_short_is_refused(folder, target):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-4])
    assert both_refuse(folder, target) == WEIGHTS


@pytest.mark.parametrize("file", [WEIGHTS, "adapter_config.json"])
def test_a_link_out_of_the_root_is_refused_and_one_inside_is_not(folder, target, tmp_path, file):
    outside = tmp_path / "outside"
    shutil.move(folder / file, outside)
    (folder / file).symlink_to(outside)
    assert both_refuse(folder, target, root=folder) == file
    load_adapter(folder, target, root=tmp_path)
    load_adapter(folder, target)


def test_a_folder_that_is_a_link_out_of_the_root_is_refused(folder, target, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "sql").symlink_to(folder)
    assert both_refuse(root / "sql", target, root) == "adapter_config.json"


def test_a_loop_of_links_is_refused(folder, target):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(folder / WEIGHTS)
    assert both_refuse(folder, target) == WEIGHTS


def test_inspecting_reads_no_value(folder, target, monkeypatch):
    monkeypatch.setattr(adapter_files.AdapterFiles, "read", lambda *_: pytest.fail("a value was read"))
    assert len(inspect_adapter(folder, target).modules) == 6


def edited(folder, edit):
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_a_copy_of_a_base_weight_that_was_trained_is_refused(folder, target):
    name = "base_model.model.lm_head.base_layer.weight"
    edited(folder, lambda tensors: tensors[name][3, 5].add_(1e-3))
    assert name in {item.tensor for item in inspect_adapter(folder, target).skipped}
    with pytest.raises(InvalidRequestError, match="differs from the base model's"):
        load_adapter(folder, target)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("base_model.model.model.embed_tokens.base_layer.weight", (260, 64)),
        ("base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias", (64,)),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", (64,)),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", (64,)),
        ("base_model.model.score.weight", (2, 64)),
        ("base_model.model.lm_head.lora_embedding_B", (4, 64)),
        ("base_model.model.model.embed_tokens.lora_A.weight", (4, 259)),
    ],
)
def test_other_tensors_are_refused_by_name(folder, target, name, shape):
    edited(folder, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    assert both_refuse(folder, target) == name


def test_added_vocabulary_is_refused(folder, target):
    name = "base_model.model.model.embed_tokens.lora_embedding_A"
    edited(folder, lambda tensors: tensors.update({name: torch.zeros(4, 260)}))
    assert both_refuse(folder, target) == "model.embed_tokens"


@pytest.mark.parametrize("key", ["\ud800", "k" * 1_000_000], ids=["lone_surrogate", "long"])
def test_what_a_folder_holds_is_quoted_as_it_can_be_sent(folder, target, key):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, key: "value"}))
    assert len(both_refuse(folder, target)) < 1000
    scan = AdapterScanner([folder.parent], target, "base", 1).scan()
    assert len(msgspec.msgpack.encode(scan.rejects)) < 2000


def test_a_folder_whose_name_is_no_text_is_a_reject_that_can_be_sent(folder, target):
    root = folder.parent
    named = root / os.fsdecode(b"bad\xff")
    folder.rename(named)
    (root / "link").symlink_to(named)
    rejects = AdapterScanner([root], target, "base", 1).scan().rejects
    assert b"bad\\udcff" in msgspec.msgpack.encode(rejects)
    with pytest.raises(InvalidRequestError):
        find_below("link", [root])


def test_a_file_that_is_cut_short_while_it_is_read_is_refused(folder, target):
    with adapter_files.AdapterFiles(folder) as files:
        last = max(files.names(), key=lambda name: files._where[name].entries[name].start)
        os.truncate(folder / WEIGHTS, 64)
        with pytest.raises(InvalidRequestError, match="ends before its tensors do") as caught:
            files.read(last)
    assert caught.value.param == last


@pytest.mark.parametrize("file", [WEIGHTS, "adapter_config.json"])
def test_a_folder_that_is_written_to_while_it_is_read_is_refused(folder, target, monkeypatch, file):
    content, read = (folder / file).read_bytes(), adapter_files.AdapterFiles.read

    def read_and_write(files, name):
        (folder / file).write_bytes(content)
        os.utime(folder / file, ns=(0, 0))  # clocks of file systems are coarse
        return read(files, name)

    load_adapter(folder, target)
    monkeypatch.setattr(adapter_files.AdapterFiles, "read", read_and_write)
    with pytest.raises(InvalidRequestError, match="changed while the adapter was read") as caught:
        load_adapter(folder, target)
    assert caught.value.param == file
