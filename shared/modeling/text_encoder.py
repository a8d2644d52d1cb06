"""A whole model folder made ready to encode: tokenizer and limits for the API half, the forward for the model thread.

Made by `load_text_encoder` on the model thread of the embedder and the reranker. Batches come in already formed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.modeling.device import choose_device, choose_dtype
from shared.modeling.encoders import Encoder, load_encoder
from shared.modeling.linear import linear_backend
from shared.modeling.pooling import normalize, pool
from shared.modeling.ragged import RaggedBatch
from shared.modeling.recipe import EncodingRecipe, RecipeOverrides, read_recipe
from shared.observability.logging import get_logger
from shared.settings.encoder import EncoderSettings
from shared.settings.errors import StartError
from shared.settings.model_folder import find_model_folder
from shared.text.preparer import TextPreparer
from shared.text.tokenizer import Tokenizer

log = get_logger(__name__)

_BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}


class TextEncoder:
    """Token ids in, one vector per sequence out.

    Args:
        preparer: the model's tokenizer and limits; the only part that other threads use.
        max_batch_tokens: tokens of one forward, padding included.
    """

    def __init__(
        self,
        encoder: Encoder,
        recipe: EncodingRecipe,
        preparer: TextPreparer,
        device: torch.device,
        max_batch_tokens: int,
    ) -> None:
        self.preparer = preparer
        self.max_batch_tokens = max_batch_tokens
        self._encoder = encoder
        self._recipe = recipe
        self._device = device

    @torch.inference_mode()
    def run(self, batch: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Vectors of `batch`, [len(batch), hidden_size] float32."""
        ragged = RaggedBatch.from_token_ids(batch, self._device)
        vectors = pool(self._encoder.encode(ragged), ragged, self._recipe.pooling)
        if self._recipe.is_normalized:
            vectors = normalize(vectors)
        return vectors.cpu().numpy()


def load_text_encoder(settings: EncoderSettings) -> TextEncoder:
    """Read the folder of `settings.model`; slow, and the place where a bad folder is found out.

    Raises:
        ModelFolderError: the folder is missing, broken or asks for what is not supported.
        StartError: folder and settings do not fit together.
    """
    folder = find_model_folder(settings.model)
    overrides = RecipeOverrides(settings.pooling, settings.normalize, settings.max_model_len)
    recipe = read_recipe(folder, overrides)
    tokenizer = Tokenizer(folder)
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    device = choose_device()
    dtype = choose_dtype(settings.dtype, folder, device)
    encoder = load_encoder(folder, dtype, device)
    max_tokens = _max_tokens(recipe, settings, encoder)
    max_batch_tokens = settings.max_num_batched_tokens or max(max_tokens, _BATCH_TOKENS[device.type])
    if max_batch_tokens < max_tokens:
        raise StartError(
            f"--max-num-batched-tokens = {max_batch_tokens} is less than the longest input, {max_tokens} tokens"
        )
    preparer = TextPreparer(tokenizer, max_tokens, encoder.vocab_size, recipe.is_lowercased, recipe.prompts)
    _log_loaded(folder, recipe, preparer, dtype=dtype, device=device, max_batch_tokens=max_batch_tokens)
    return TextEncoder(encoder, recipe, preparer, device, max_batch_tokens)


def _max_tokens(recipe: EncodingRecipe, settings: EncoderSettings, encoder: Encoder) -> int:
    if settings.max_model_len is not None and settings.max_model_len > encoder.max_positions:
        raise StartError(
            f"--max-model-len = {settings.max_model_len} is more than the model's {encoder.max_positions} positions"
        )
    return min(recipe.max_tokens or encoder.max_positions, encoder.max_positions)


def _log_loaded(
    folder: Path,
    recipe: EncodingRecipe,
    preparer: TextPreparer,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_batch_tokens: int,
) -> None:
    log.info(
        "model_loaded",
        model=folder.name,
        pooling=recipe.pooling,
        normalize=recipe.is_normalized,
        prompts={kind: prompt for kind, prompt in recipe.prompts.items() if prompt},
        max_model_len=preparer.max_tokens,
        max_num_batched_tokens=max_batch_tokens,
        num_threads=torch.get_num_threads(),
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        linear_backend=linear_backend(device, dtype),
    )
