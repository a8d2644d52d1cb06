"""Clients and operators that load, unload, replace, pin and name adapters at random, each text checked against its version's own.

`test_churn` runs it for a few seconds; `python -m tests.generator.adapters.churn --seconds 60` for longer. Texts of a version are
known by its digest from a time when nothing else ran; that those are `peft`'s is the matter of other tests.
"""

import argparse
import collections
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from tests.fakes.service_process import ServiceProcess
from tests.generator.adapters.conftest import make_adapter
from tests.generator.conftest import save_tiny_llama

KEY = "admin-key"
NUM_CONTENTS = 6
NUM_SLOTS, NUM_PLACES = 2, 4
PROMPTS = ([5, 6, 7, 8, 9], list(range(40)), [200, 3])
NAMES = [f"n{number}" for number in range(4)]
ALLOWED = {"adapter_not_found", "model_not_found", "adapter_conflict", "overloaded"}
"""What a call may be refused with while adapters come and go; `invalid_request` would be a folder that cannot be read."""


class Churn:
    """One service, and threads against it; `problems` must stay empty."""

    def __init__(self, url: str, seed: int = 0) -> None:
        self.url = url
        self.seed = seed
        self.texts: dict[tuple[str | None, int], str] = {}
        self.problems: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._ends_at = 0.0

    def learn(self) -> None:
        """The text of each content, and of the base model, while nothing else runs."""
        with httpx.Client(base_url=self.url, timeout=60) as client:
            for model in ("base", *(f"c{number}" for number in range(NUM_CONTENTS))):
                for index in range(len(PROMPTS)):
                    digest, text = self._complete(client, model, index)
                    self.texts[digest, index] = text
        assert len(self.texts) == (NUM_CONTENTS + 1) * len(PROMPTS)

    def run(self, seconds: float) -> None:
        """All threads at once."""
        self._ends_at = time.monotonic() + seconds
        parts = [self._request, self._request, self._request, self._leave, self._change, self._change]
        threads = [threading.Thread(target=self._loop, args=(part, n)) for n, part in enumerate(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def rest(self) -> dict:
        """Unload what was loaded; answers the list of adapters once no request is left."""
        with httpx.Client(base_url=self.url, timeout=60) as client:
            for name in NAMES:
                self._admin(client, "unload", lora_name=name, drain=True)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                listed = client.get("/v1/adapters").json()
                if all(not item["leases"] + item["waiting"] + item["running"] for item in listed["data"]):
                    break
                time.sleep(0.1)
            return listed

    def _loop(self, part, number: int) -> None:
        rng = random.Random(self.seed * 100 + number)
        try:
            with httpx.Client(base_url=self.url, timeout=60) as client:
                while time.monotonic() < self._ends_at:
                    part(client, rng)
        except Exception as error:  # a thread's error would be lost otherwise
            self.problems.append(repr(error))
            raise

    def _request(self, client: httpx.Client, rng: random.Random) -> None:
        index = rng.randrange(len(PROMPTS))
        model = rng.choice(["base", *NAMES, *NAMES, *(f"c{number}" for number in range(NUM_CONTENTS))])
        found = self._complete(client, model, index)
        if found is not None and self.texts[found[0], index] != found[1]:
            self.problems.append(f"{model} as {found[0]} said {found[1]!r}")

    def _complete(self, client: httpx.Client, model: str, index: int) -> tuple[str | None, str] | None:
        body = {"model": model, "prompt": PROMPTS[index], "temperature": 0, "max_tokens": 8}
        response = client.post("/v1/completions", json=body)
        if not self._is_fine("complete", response):
            return None
        name, _, digest = response.headers.get("x-trivium-adapter", "").partition("@")
        if name != ("" if model == "base" else model):
            self.problems.append(f"{name} answered for {model}")
        return digest or None, response.json()["choices"][0]["text"]

    def _leave(self, client: httpx.Client, rng: random.Random) -> None:
        """A client that hangs up in the middle of its stream."""
        body = {"model": rng.choice(NAMES), "prompt": PROMPTS[1], "max_tokens": 60, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 200:
                for _ in zip(range(rng.randrange(5)), response.iter_lines(), strict=False):
                    pass
                self.counts["left"] += 1

    def _change(self, client: httpx.Client, rng: random.Random) -> None:
        name, content = rng.choice(NAMES), f"c{rng.randrange(NUM_CONTENTS)}"
        match rng.randrange(6):
            case 0:
                self._admin(client, "unload", lora_name=name, drain=rng.random() < 0.5)
            case 1:
                self._admin(client, "pin", lora_name=name, pinned=rng.random() < 0.4)
            case _:
                self._admin(client, "load", lora_name=name, lora_path=content, dry_run=rng.random() < 0.1)
        time.sleep(rng.random() * 0.02)

    def _admin(self, client: httpx.Client, what: str, **fields: object) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        self._is_fine(what, client.post(f"/v1/{what}_lora_adapter", json=fields, headers=headers))

    def _is_fine(self, what: str, response: httpx.Response) -> bool:
        code = "ok" if response.status_code == 200 else json.loads(response.text)["error"]["code"]
        self.counts[f"{what} {code}"] += 1
        if code not in {"ok", *ALLOWED}:
            self.problems.append(f"{what}: {response.status_code} {response.text}")
        return code == "ok"


def prepare(folder: Path) -> list[str]:
    """A tiny model and contents below a root in `folder`; answers the flags of a service for them."""
    base = save_tiny_llama(folder / "base", eos_token_id=None)
    for number in range(NUM_CONTENTS):
        make_adapter(base, folder / "root" / f"c{number}", seed=number, r=1 + number)
    flags = ["--model", str(base), "--lora-root", str(folder / "root"), "--max-lora-rank", "8", "--num-threads", "1"]
    flags += ["--max-loras", str(NUM_SLOTS), "--max-cpu-loras", str(NUM_PLACES), "--lora-max-wait", "0.3"]
    return [*flags, "--allow-runtime-lora", "--admin-api-key", KEY, "--max-num-seqs", "4"]


def main() -> None:
    """For as long as asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.generator.adapters.churn", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trivium-churn-"))
    try:
        with ServiceProcess("generator", folder / "log", *prepare(folder)) as process:
            process.wait_ready()
            churn = Churn(process.url, options.seed)
            churn.learn()
            churn.run(options.seconds)
            bank = churn.rest()["bank"]
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(f"{dict(churn.counts)}\n{bank}\nproblems: {churn.problems}\n")
    sys.exit(bool(churn.problems))


if __name__ == "__main__":
    main()
