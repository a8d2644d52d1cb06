"""Adapters that are loaded, unloaded, pinned and found below a root over HTTP, and every refusal."""

import json
import shutil

import httpx
import pytest

from tests.fakes.service_process import ServiceProcess
from tests.generator.adapters.conftest import make_adapter, reference_tokens
from tests.generator.conftest import save_tiny_llama
from tests.generator.test_service import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
PROMPT = [5, 6, 7, 8, 9]
KEY = "admin-key"


class Server:
    """A generator with a root of adapters: `team/a` and `broken` lie there from the start, `away/b` and `away/c` outside of it."""

    def __init__(self, process, folder):
        self.url, self.folder, self.root, self.process = process.url, folder, folder / "root", process

    def call(self, what, key=KEY, **fields):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.post(f"{self.url}/v1/{what}_lora_adapter", json=fields, headers=headers, timeout=60)

    def complete(self, model, **fields):
        body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 6, **fields}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)

    def adapters(self):
        return httpx.get(f"{self.url}/v1/adapters", timeout=60).json()

    def adapter(self, name):
        return next((item for item in self.adapters()["data"] if item["name"] == name), None)

    def text(self, adapter):
        tokens = reference_tokens(self.folder / "base", self.folder / adapter, PROMPT, 6)
        response = httpx.post(f"{self.url}/detokenize", json={"tokens": tokens}, timeout=60)
        return response.json()["prompt"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtime")
    base = save_tiny_llama(folder / "base", eos_token_id=None)
    make_adapter(base, folder / "root" / "team" / "a", seed=1)
    make_adapter(base, folder / "root" / "big", seed=2, r=16)
    for seed, name in enumerate(("b", "c"), 3):
        make_adapter(base, folder / "away" / name, seed=seed)
    (folder / "root" / "out").symlink_to(folder / "away" / "b")
    flags = ["--lora-root", str(folder / "root"), "--allow-runtime-lora", "--admin-api-key", KEY]
    flags += ["--max-lora-rank", "8", "--max-loras", "2", "--lora-scan-interval", "0.2", "--num-threads", "1"]
    with ServiceProcess("generator", folder / "log", "--model", str(base), *flags) as process:
        process.wait_ready()
        yield Server(process, folder)


@pytest.fixture
def loaded(server):
    """`b`, loaded from a copy below the root."""
    shutil.copytree(server.folder / "away" / "b", server.root / "copies" / "b", dirs_exist_ok=True)
    response = server.call("load", lora_name="b", lora_path="copies/b")
    yield response
    server.call("unload", lora_name="b", drain=True)
    shutil.rmtree(server.root / "copies")
    eventually(lambda: server.adapter("b") is None and server.adapter("copies/b") is None)


def test_what_lies_below_a_root_is_listed_and_read_when_it_is_named(server):
    before = server.adapter("team/a")
    assert (before["tier"], before["digest"], before["max_rank"], before["num_modules"]) == ("disk", None, 4, 14)
    one = httpx.get(f"{server.url}/v1/models/team/a").json()
    assert (one["parent"], one["root"]) == ("base", str(server.root / "team" / "a"))
    response = server.complete("team/a")
    assert response.json()["choices"][0]["text"] == server.text("root/team/a")
    eventually(lambda: server.adapter("team/a")["leases"] == 0)
    after = server.adapter("team/a")
    assert response.headers["x-trivium-adapter"] == f"team/a@{after['digest']}"
    assert (after["tier"], after["hits"], after["status"]) == ("device", 1, "serving")


def test_rejects_are_listed_with_their_reasons_and_not_as_models(server):
    rejected = {item["root"]: item["reason"] for item in server.adapters()["rejected"]}
    assert "rank 16, above --max-lora-rank 8" in rejected[str(server.root / "big")]
    assert "leads out of the root" in rejected[str(server.root / "out")]
    assert server.complete("big").status_code == server.complete("out").status_code == 404
    bank = server.adapters()["bank"]
    assert (bank["max_rank"], bank["num_slots"], bank["num_host_places"]) == (8, 2, 256)
    assert bank["kv_tokens_per_slot"] > 0


def test_a_loaded_adapter_answers_and_an_unloaded_one_does_not(server, loaded):
    report = loaded.json()
    assert (loaded.status_code, report["status"], report["max_rank"], len(report["modules"])) == (200, "loaded", 4, 14)
    assert report["modules"][0]["scale"] == 2
    assert server.complete("b").json()["choices"][0]["text"] == server.text("away/b")
    again = server.call("load", lora_name="b", lora_path=str(server.root / "copies" / "b"))
    assert again.json()["status"] == "unchanged"
    eventually(lambda: server.adapter("b")["leases"] == 0)
    assert server.call("unload", lora_name="b").json() == {"lora_name": "b", "status": "unloaded"}
    assert server.complete("b").status_code == 404


def test_other_content_under_a_name_is_a_new_version(server, loaded):
    shutil.copytree(server.folder / "away" / "c", server.root / "copies" / "c")
    refused = server.call("load", lora_name="b", lora_path="copies/c", load_inplace=False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_conflict")
    stream = {"model": "b", "prompt": PROMPT, "temperature": 0, "max_tokens": 200, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=stream, timeout=60) as running:
        assert running.headers["x-trivium-adapter"] == f"b@{loaded.json()['digest']}"
        replaced = server.call("load", lora_name="b", lora_path="copies/c")
        assert replaced.json()["status"] == "loaded"
        assert server.complete("b").json()["choices"][0]["text"] == server.text("away/c")
        events = [json.loads(line[6:]) for line in running.iter_lines() if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text.startswith(server.text("away/b")[:4])
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_an_adapter_in_use_is_unloaded_after_its_requests_or_not_at_all(server, loaded):
    stream = {"model": "b", "prompt": PROMPT, "max_tokens": 220, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=stream, timeout=60) as running:
        refused = server.call("unload", lora_name="b")
        assert (refused.status_code, refused.json()["error"]["param"]) == (409, "lora_name")
        assert server.call("unload", lora_name="b", drain=True).json()["status"] == "draining"
        assert server.complete("b").status_code == 404
        assert '"finish_reason":"length"' in "".join(running.iter_lines())
    eventually(lambda: server.adapter("b") is None)


def test_a_dry_run_reports_and_serves_nothing(server):
    report = server.call("load", lora_name="x", lora_path="team/a", dry_run=True).json()
    assert (report["status"], len(report["modules"])) == ("checked", 14)
    assert server.adapter("x") is None
    refused = server.call("load", lora_name="x", lora_path="big", dry_run=True)
    assert "above --max-lora-rank 8" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("what", "fields", "status", "param"),
    [
        ("load", {"lora_name": "base", "lora_path": "team/a"}, 400, "lora_name"),
        ("load", {"lora_name": "a b", "lora_path": "team/a"}, 400, "lora_name"),
        ("load", {"lora_name": "x/../base", "lora_path": "team/a"}, 400, "lora_name"),
        ("load", {"lora_name": "x//y", "lora_path": "team/a"}, 400, "lora_name"),
        ("load", {"lora_name": "x/", "lora_path": "team/a"}, 400, "lora_name"),
        ("load", {"lora_name": "x" * 129, "lora_path": "team/a"}, 400, "lora_name"),
        ("load", {"lora_name": "x", "lora_path": "nowhere"}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": "out"}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": "../away/b"}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": "/etc"}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": "."}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": "team/\x00"}, 400, "lora_path"),
        ("load", {"lora_name": "x"}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": "team/a", "lora_int_id": 1}, 400, "lora_int_id"),
        ("unload", {"lora_name": "nobody"}, 404, "lora_name"),
        ("pin", {"lora_name": "nobody"}, 404, "lora_name"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_field(server, what, fields, status, param):
    response = server.call(what, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("what", ["load", "unload", "pin"])
def test_only_the_admin_key_changes_adapters(server, what):
    for key in (None, "other"):
        assert server.call(what, key=key, lora_name="x").status_code == 401


def test_a_pinned_adapter_is_read_and_stays(server, loaded):
    assert server.call("pin", lora_name="b").json() == {"lora_name": "b", "status": "pinned"}
    assert server.adapter("b")["pinned"]
    refused = server.call("pin", lora_name="team/a")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_conflict")
    assert server.call("pin", lora_name="b", pinned=False).json()["status"] == "unpinned"


def test_a_folder_that_comes_or_goes_is_noticed(server):
    shutil.copytree(server.folder / "away" / "c", server.root / "late")
    eventually(lambda: server.adapter("late") is not None)
    assert server.complete("late").json()["choices"][0]["text"] == server.text("away/c")
    shutil.rmtree(server.root / "late")
    eventually(lambda: server.adapter("late") is None)
    assert server.complete("late").status_code == 404


def test_a_folder_that_breaks_before_it_is_read_fails_who_named_it(server):
    shutil.copytree(server.folder / "away" / "c", server.root / "weak")
    eventually(lambda: server.adapter("weak") is not None)
    weights = server.root / "weak" / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    response = server.complete("weak")
    assert response.status_code in (400, 404)  # 404 where the scanner has seen it meanwhile
    assert "weak" in response.text or "adapter_model.safetensors" in response.text
    shutil.rmtree(server.root / "weak")
