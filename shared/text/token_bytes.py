"""The bytes that each token stands for, by the two conventions that tokenizers have for bytes.

Byte-level tokenizers spell each byte as a printable character (GPT-2's table); SentencePiece ones write a space as U+2581 and
lone bytes as `<0xNN>`. Used for log-probabilities, where a token may be half a character. Knows one token at a time.
"""

import re

_SPACE = "\u2581"
_LONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_table() -> dict[str, int]:
    """Inverse of GPT-2's `bytes_to_unicode`: printable bytes stand for themselves, the rest follow from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_table()


def token_bytes(token: str, *, is_byte_level: bool) -> bytes:
    """Bytes of an ordinary token as the vocabulary spells it."""
    if is_byte_level and all(char in _BYTE_OF_CHAR for char in token):
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    lone = _LONE_BYTE.fullmatch(token)
    if lone is not None:
        return bytes([int(lone[1], 16)])
    return token.replace(_SPACE, " ").encode()


def readable(data: bytes) -> str:
    """The text of `data`; where it is no whole text, `bytes:` and escapes, as OpenAI writes it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
