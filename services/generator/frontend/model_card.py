"""What the API process knows of the model: names, limits and end tokens, read from its folder without torch.

Made once at start by `app.py`, read by the routes.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from services.generator.core.adapters import AdapterDescription
from services.generator.core.end_tokens import read_end_token_ids
from shared.contracts.models import ModelEntry
from shared.errors import ModelNotFoundError
from shared.modeling.vision_families import text_config
from shared.settings.model_folder import read_json


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One served base model; `created` in unix seconds, `vocab_size` the ids that both tokenizer and model know."""

    name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    created: int
    takes_images: bool = False

    def check_name(self, asked: str | None) -> None:
        """Raise ModelNotFoundError unless `asked` is this model or left out."""
        if asked is not None and asked != self.name:
            raise ModelNotFoundError(f"model: {asked!r} is not served here; {self.name!r} is", param="model")

    def adapter_entry(self, adapter: AdapterDescription) -> ModelEntry:
        """The line of an adapter of this model."""
        return self.entry().model_copy(update={"id": adapter.name, "root": adapter.root, "parent": self.name})

    def entry(self) -> ModelEntry:
        """Its line in `/v1/models`."""
        return ModelEntry(
            id=self.name,
            created=self.created,
            task="generate",
            max_model_len=self.max_model_len,
            input_modalities=["text", "image"] if self.takes_images else ["text"],
        )


def read_model_card(folder: Path, name: str, max_model_len: int | None, num_token_ids: int) -> ModelCard:
    """Read the card of the model in `folder`; the context length comes from the config unless given.

    Args:
        num_token_ids: ids of the tokenizer, which may be more than the model has rows for.
    """
    config = text_config(read_json(folder / "config.json"))
    return ModelCard(
        name=name,
        max_model_len=max_model_len or int(config.get("max_position_embeddings") or 2048),
        vocab_size=min(num_token_ids, int(config.get("vocab_size") or num_token_ids)),
        eos_token_ids=read_end_token_ids(folder),
        created=int(time.time()),
    )
