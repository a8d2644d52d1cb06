"""A whole model folder made ready to embed: tokenizer and limits for the API half, the forward for the model thread.

Made by `load_text_encoder` on the model thread of the embedder and the reranker. Batches come in already formed.
"""

from collections.abc import Sequence

import torch

from shared.modeling.dense import VectorStep, load_dense
from shared.modeling.encoder_setup import EncoderSetup, open_encoder
from shared.modeling.pooling import normalize, pool
from shared.modeling.ragged import RaggedBatch
from shared.modeling.recipe import EncodingRecipe, RecipeOverrides, read_recipe
from shared.modeling.transfers import HostCopy
from shared.observability.logging import get_logger
from shared.settings.encoder import EncoderSettings
from shared.settings.model_folder import find_model_folder
from shared.text.preparer import TextPreparer
from shared.text.vector_shape import VectorShape

log = get_logger(__name__)


class TextEncoder:
    """Token ids in, one vector per sequence out.

    Args:
        dense: the layers behind pooling, see `load_dense`.
        preparer: the model's tokenizer and limits; the only part that other threads use.
    """

    def __init__(
        self, setup: EncoderSetup, recipe: EncodingRecipe, dense: Sequence[VectorStep], preparer: TextPreparer
    ) -> None:
        self.preparer = preparer
        self.forward = setup.forward
        self._encoder = setup.encoder
        self._device = setup.device
        self._recipe = recipe
        self._dense = dense

    @torch.inference_mode()
    def launch(self, batch: Sequence[Sequence[int]]) -> HostCopy:
        """Vectors of `batch`, [len(batch), N] float32."""
        ragged = RaggedBatch.from_token_ids(batch, self._device)
        vectors = pool(self._encoder.encode(ragged), ragged, self._recipe.pooling)
        for step in self._dense:
            vectors = step(vectors)
        if self._recipe.is_normalized:
            vectors = normalize(vectors)
        return HostCopy(vectors)


def load_text_encoder(settings: EncoderSettings, *, is_matryoshka: bool = False) -> TextEncoder:
    """Read the folder of `settings.model`; slow, and the place where a bad folder is found out.

    Args:
        is_matryoshka: vectors may be cut to any length, whatever the folder says.
    Raises:
        ModelFolderError: the folder is missing, broken or asks for what is not supported.
        StartError: folder and settings do not fit together.
    """
    # The recipe first: it takes no time, and where it lacks something the weights need not be read.
    overrides = RecipeOverrides(settings.pooling, settings.normalize, is_matryoshka)
    recipe = read_recipe(find_model_folder(settings.model), overrides)
    setup = open_encoder(settings)
    dense = load_dense(recipe.dense, setup.encoder.hidden_size * len(recipe.pooling), setup.device)
    num_dims = recipe.dense[-1].num_out if recipe.dense else setup.encoder.hidden_size * len(recipe.pooling)
    preparer = TextPreparer(
        setup.tokenizer,
        setup.max_tokens,
        setup.encoder.vocab_size,
        recipe.is_lowercased,
        recipe.prompts,
        VectorShape(num_dims, recipe.shorter_dims, recipe.is_normalized),
    )
    log.info(
        "model_loaded",
        pooling=" + ".join(recipe.pooling),
        num_dims=num_dims,
        normalize=recipe.is_normalized,
        prompts=recipe.prompts.by_kind(),
        **setup.describe(),
    )
    return TextEncoder(setup, recipe, dense, preparer)
