"""A model's tokenizer, read from its folder with the `tokenizers` library; no torch, no transformers.

Used by the API side of every model service. Encodes and decodes; knows nothing of templates, batches or limits.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from shared.settings.errors import ModelFolderError
from shared.text.frames import Frame, PairFrame
from shared.text.token_bytes import token_bytes

_PROBE = "a"
"""A text that every tokenizer makes at least one token of."""


class Tokenizer:
    """Text to token ids and back.

    Args:
        folder: a Hugging Face model folder with a `tokenizer.json`.
    Raises:
        ModelFolderError: there is no `tokenizer.json` or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(f"{folder} has no tokenizer.json; save the tokenizer in the fast format first")
        try:
            self._fast = FastTokenizer.from_file(str(path))
        except Exception as error:
            raise ModelFolderError(f"tokenizer.json cannot be read: {error}") from error
        self._fast.no_padding()
        self._fast.no_truncation()
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)
        self.max_token_chars: int = max(map(len, self._fast.get_vocab(with_added_tokens=True)))
        added = self._fast.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._is_byte_level = "ByteLevel" in str(self._fast.decoder)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in the text become their ids."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` for several texts, on several threads."""
        encodings = self._fast.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def frame(self) -> Frame:
        """The special tokens round one text."""
        return Frame.of(self._fast.encode(_PROBE))

    def pair_frame(self) -> PairFrame | None:
        """The special tokens round and between two texts; None where the tokenizer has no convention for pairs."""
        return PairFrame.of(self._fast.encode(_PROBE, _PROBE))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `token_ids`; bytes that are no whole character become U+FFFD."""
        text: str = self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; a special token's are its name."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token: str | None = self._fast.id_to_token(token_id)
        return b"" if token is None else token_bytes(token, is_byte_level=self._is_byte_level)

    def to_json(self) -> str:
        """The content of a `tokenizer.json` without padding and truncation, for libraries that read one."""
        text: str = self._fast.to_str()
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of one token by its exact content."""
        token_id: int | None = self._fast.token_to_id(token)
        return token_id
