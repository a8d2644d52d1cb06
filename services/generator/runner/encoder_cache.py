"""Storage of what the vision encoder made of images: rows of the decoder's width, anywhere in one tensor.

Written to rows that the scheduler's ledger decided on, read by the steps whose tokens are images'. Allocates once, at start.
"""

from collections.abc import Sequence

import numpy as np
import torch

from services.generator.core.plan import ImageEncode, ImageWork
from services.generator.layers.forward_batch import ImageRows
from services.generator.vision.encoder import VisionEncoder
from shared.modeling.transfers import to_device


class EncoderCache:
    """All rows.

    Args:
        width: of a row, which is the decoder's.
    """

    def __init__(
        self, encoder: VisionEncoder, num_rows: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._encoder = encoder
        self._rows = torch.zeros(num_rows, width, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Memory of all rows."""
        return self._rows.nbytes

    def encode(self, encodes: Sequence[ImageEncode]) -> None:
        """Make rows hold what the encoder says of these images, in one call of it."""
        if not encodes:
            return
        where = to_device(np.concatenate([rows for _, rows in encodes]), self._rows.device)
        self._rows.index_copy_(0, where.long(), torch.cat(self._encoder([image for image, _ in encodes])))

    def read(self, work: ImageWork) -> ImageRows:
        """What takes the place of embeddings in a step."""
        tokens, rows = to_device(np.stack([work.tokens, work.rows]), self._rows.device).long()
        return ImageRows(tokens, self._rows.index_select(0, rows))
