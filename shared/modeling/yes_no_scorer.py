"""A generative model as a judge: how much likelier it says "yes" than "no" after a prompt, from those two rows of its head.

Made by `load_yes_no_scorer` on the model thread of the reranker.
Source: Qwen3 Embedding: Advancing Text Embedding and Reranking Through Foundation Models, arXiv:2506.05176, §2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.modeling.encoder_setup import EncoderSetup, open_encoder
from shared.modeling.pooling import pool
from shared.modeling.ragged import RaggedBatch
from shared.modeling.sequence_classifier import SequenceScorer
from shared.modeling.weights import WeightFiles
from shared.observability.logging import get_logger
from shared.settings.encoder import EncoderSettings
from shared.settings.errors import ModelFolderError

log = get_logger(__name__)

_HEADS = ("lm_head.weight", "embed_tokens.weight", "model.embed_tokens.weight")
"""The head; where the folder has none it is tied to the embedding."""


@dataclass(frozen=True)
class YesNoHead:
    """Log-odds of yes against no at the last token.

    Attributes:
        rows: [2, H] float32, the head's row for yes and for no.
    """

    rows: Tensor

    def __call__(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """Semantics: out[s] = h[s] · yes - h[s] · no, with h the last state; [T, H] to [S, 1] float32."""
        logits = pool(hidden, batch, ["last"]) @ self.rows.t()  # [S, 2]
        return logits[:, :1] - logits[:, 1:]


def load_yes_no_scorer(settings: EncoderSettings) -> tuple[SequenceScorer, EncoderSetup]:
    """Read the folder of `settings.model`.

    Raises:
        ModelFolderError: the folder is missing, broken, asks for what is not supported or has no tokens yes and no.
        StartError: folder and settings do not fit together.
    """
    setup = open_encoder(settings)
    ids = [setup.tokenizer.token_to_id(word) for word in ("yes", "no")]
    if None in ids:
        raise ModelFolderError("the tokenizer has no tokens yes and no")
    with WeightFiles(setup.folder) as files:
        name = next((name for name in _HEADS if name in files), _HEADS[0])
        rows = files.read_rows(name, [i for i in ids if i is not None], setup.encoder.hidden_size, torch.float32)
    log.info("model_loaded", activation="sigmoid", tokens=["yes", "no"], **setup.describe())
    return SequenceScorer(setup, YesNoHead(rows.to(setup.device)), has_types=False), setup
