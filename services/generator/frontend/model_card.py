"""What the API process knows of the model: names, limits and end tokens, read from its folder without torch.

Made once at start by `app.py`, read by the routes.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.contracts.models import ModelEntry
from shared.errors import ModelNotFoundError
from shared.settings.model_folder import read_json


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One served base model; `created` in unix seconds, `vocab_size` the ids that both tokenizer and model know."""

    name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    created: int

    def check_name(self, asked: str | None) -> None:
        """Raise ModelNotFoundError unless `asked` is this model or left out."""
        if asked is not None and asked != self.name:
            raise ModelNotFoundError(f"model: {asked!r} is not served here; {self.name!r} is", param="model")

    def entry(self) -> ModelEntry:
        """Its line in `/v1/models`."""
        return ModelEntry(id=self.name, created=self.created, task="generate", max_model_len=self.max_model_len)


def read_model_card(folder: Path, name: str, max_model_len: int | None, num_token_ids: int) -> ModelCard:
    """Read the card of the model in `folder`; the context length comes from the config unless given.

    Args:
        num_token_ids: ids of the tokenizer, which may be more than the model has rows for.
    """
    config = read_json(folder / "config.json")
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelCard(
        name=name,
        max_model_len=max_model_len or int(config.get("max_position_embeddings") or 2048),
        vocab_size=min(num_token_ids, int(config.get("vocab_size") or num_token_ids)),
        eos_token_ids=frozenset(_ids(eos)),
        created=int(time.time()),
    )


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]
