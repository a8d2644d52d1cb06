"""Any other encoder, run by the `transformers` library where it is installed: slower, padded, and said at the start.

Called through `shared.modeling.encoders` for architectures that have no module here. Never runs code from a model's folder.
"""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.modeling.ragged import RaggedBatch
from shared.observability.logging import get_logger
from shared.settings.errors import ModelFolderError

log = get_logger(__name__)

_MAY_BE_MISSING = ("pooler.", "position_ids")


class TransformersEncoder:
    """A model of the library behind the project's own interface."""

    num_token_types = 0
    has_padding = True

    def __init__(self, model: Any, hidden_size: int) -> None:
        self.vocab_size = int(model.config.vocab_size)
        self.max_positions = int(model.config.max_position_embeddings)
        self.hidden_size = hidden_size
        self._model = model

    def encode(self, batch: RaggedBatch) -> Tensor:
        """Hidden states of the last layer, [T, H]."""
        token_ids = batch.pad(batch.token_ids[:, None])[..., 0]  # [S, max_length]
        mask = batch.pad(torch.ones_like(batch.token_ids)[:, None])[..., 0]
        return batch.unpad(self._model(input_ids=token_ids, attention_mask=mask).last_hidden_state)


def load_transformers_encoder(
    folder: Path, architecture: str, dtype: torch.dtype, device: torch.device
) -> TransformersEncoder:
    """The encoder in `folder`, as the library's AutoModel loads it.

    Raises:
        ModelFolderError: the library is not installed, does not know the model, lacks weights or cannot run it as an encoder.
    """
    try:
        library = importlib.import_module("transformers")
    except ImportError:
        raise ModelFolderError(
            f"architecture {architecture} is not supported natively; pip install transformers to run it through that library"
        ) from None
    model = _load(library, folder, architecture, dtype).to(device).eval()
    if getattr(model.config, "max_position_embeddings", None) is None:
        raise ModelFolderError(
            f"architecture {architecture} is not supported: config.json has no max_position_embeddings"
        )
    log.warning("encoder_by_transformers", architecture=architecture, reason="there is no native one; it is slower")
    return TransformersEncoder(model, _hidden_size(model, architecture, device))


def _load(library: Any, folder: Path, architecture: str, dtype: torch.dtype) -> Any:
    try:
        model, info = library.AutoModel.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise ModelFolderError(
            f"architecture {architecture} is not supported: transformers says {_first_line(error)}"
        ) from error
    family = type(model).__name__.removesuffix("Model")
    missing = sorted(name for name in info["missing_keys"] if not any(part in name for part in _MAY_BE_MISSING))
    if not architecture.startswith(family) or missing:
        found = f"the weights lack {missing[0]}" if missing else f"transformers takes the folder for {family}"
        raise ModelFolderError(f"architecture {architecture} is not supported: {found}")
    return model


@torch.inference_mode()
def _hidden_size(model: Any, architecture: str, device: torch.device) -> int:
    """Width of its states, by one token's forward; where that fails nothing else would work."""
    probe = torch.zeros(1, 1, dtype=torch.int64, device=device)
    try:
        states = model(input_ids=probe, attention_mask=probe + 1).last_hidden_state
    except Exception as error:
        raise ModelFolderError(
            f"architecture {architecture} does not run as an encoder: {_first_line(error)}"
        ) from error
    return int(states.shape[-1])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
