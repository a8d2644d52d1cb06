"""What every model of the embedder and the reranker needs at its start: folder, tokenizer, encoder, device and the two limits.

Called by the loaders of text encoders and of classifiers, on the model thread.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from shared.batching.model_thread import ForwardSpec
from shared.modeling.device import choose_device, choose_dtype
from shared.modeling.encoders import Encoder, load_encoder
from shared.modeling.linear import linear_backend
from shared.modeling.ragged import RaggedBatch
from shared.settings.encoder import EncoderSettings
from shared.settings.errors import StartError
from shared.settings.model_folder import find_model_folder, read_json
from shared.text.tokenizer import Tokenizer

_BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
_IN_FLIGHT = {"cpu": 1, "cuda": 2}


@dataclass(frozen=True)
class EncoderSetup:
    """A folder opened.

    Attributes:
        max_tokens: longest sequence, special tokens included.
    """

    folder: Path
    tokenizer: Tokenizer
    encoder: Encoder
    dtype: torch.dtype
    device: torch.device
    max_tokens: int
    forward: ForwardSpec

    def describe(self) -> dict[str, object]:
        """What every start says of its model."""
        return {
            "model": self.folder.name,
            "max_model_len": self.max_tokens,
            "max_num_batched_tokens": self.forward.max_tokens,
            "num_threads": torch.get_num_threads(),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "linear_backend": linear_backend(self.device, self.dtype),
        }


def open_encoder(settings: EncoderSettings) -> EncoderSetup:
    """Read the folder of `settings.model`; slow, and the place where a bad folder is found out.

    Raises:
        ModelFolderError: the folder is missing, broken or asks for what is not supported.
        StartError: folder and settings do not fit together.
    """
    folder = find_model_folder(settings.model)
    tokenizer = Tokenizer(folder)
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    device = choose_device()
    dtype = choose_dtype(settings.dtype, folder, device)
    encoder = load_encoder(folder, dtype, device)
    max_tokens = _max_tokens(folder, settings, encoder)
    max_batch_tokens = settings.max_num_batched_tokens or max(max_tokens, _BATCH_TOKENS[device.type])
    if max_batch_tokens < max_tokens:
        raise StartError(
            f"--max-num-batched-tokens = {max_batch_tokens} is less than the longest input, {max_tokens} tokens"
        )
    forward = ForwardSpec(max_batch_tokens, encoder.has_padding, _IN_FLIGHT[device.type])
    if device.type == "cuda":
        _run_largest(encoder, max_tokens, max_batch_tokens, device)
    return EncoderSetup(folder, tokenizer, encoder, dtype, device, max_tokens, forward)


@torch.inference_mode()
def _run_largest(encoder: Encoder, max_tokens: int, max_batch_tokens: int, device: torch.device) -> None:
    """The largest forward there can be, so that its memory is taken and its kernels are compiled before anybody waits."""
    batch = RaggedBatch.from_token_ids([[0] * max_tokens] * (max_batch_tokens // max_tokens), device)
    try:
        encoder.encode(batch)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        raise StartError(
            f"a forward of {max_batch_tokens} tokens does not fit into the GPU's memory; "
            "start with a smaller --max-num-batched-tokens"
        ) from None


def _max_tokens(folder: Path, settings: EncoderSettings, encoder: Encoder) -> int:
    if settings.max_model_len is not None and settings.max_model_len > encoder.max_positions:
        raise StartError(
            f"--max-model-len = {settings.max_model_len} is more than the model's {encoder.max_positions} positions"
        )
    declared = settings.max_model_len or _declared_max_tokens(folder)
    return min(declared or encoder.max_positions, encoder.max_positions)


def _declared_max_tokens(folder: Path) -> int | None:
    """Longest text by the files beside the weights, special tokens included; None where they say nothing."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        path = folder / name
        declared = read_json(path).get(key) if path.is_file() else None
        if declared:
            return int(declared)
    return None
