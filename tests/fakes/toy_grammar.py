"""Fifty one-letter tokens and a grammar over them that plain Python can follow too, for tests of ledgers and loops."""

from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

NUM_TOKENS = 50
END = 49


class _Letters:
    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)
    tokens = (*(bytes([ord("A") + i]) for i in range(END)), b"</s>")

    def __call__(self, text: bytes) -> list[int]:
        return [byte - ord("A") for byte in text]


def toy_tokenizer() -> LLTokenizer:
    """Token i is the i-th letter from A; the last one ends."""
    return LLTokenizer(TokenizerWrapper(_Letters()))


@dataclass(frozen=True)
class ToyGrammar:
    """`num_first` letters of A to E, then at most `num_more` of F to H."""

    num_first: int
    num_more: int

    @property
    def text(self) -> str:
        return LLMatcher.grammar_from_regex(f"[A-E]{{{self.num_first}}}[F-H]{{0,{self.num_more}}}")

    def allowed(self, output: list[int]) -> list[int]:
        """Ids that may follow `output`."""
        if len(output) < self.num_first:
            return [0, 1, 2, 3, 4]
        if len(output) < self.num_first + self.num_more:
            return [5, 6, 7, END]
        return [END]
