"""From queries and documents to the prompts of a judge that answers yes or no, in the words that Qwen3-Reranker was trained on.

Called off the event loop by the reranker. The template is the model's own; without it its scores mean little.
Source: the model card of Qwen/Qwen3-Reranker-0.6B; Qwen3 Embedding, arXiv:2506.05176, §2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from shared.text.frames import TypedTokens
from shared.text.pair_preparer import DocumentFit, PairRules, spread
from shared.text.preparer import Prepared, check_texts
from shared.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class JudgePreparer:
    """Prompts that end where the model says yes or no.

    Attributes:
        max_tokens: longest prompt.
    """

    tokenizer: Tokenizer
    max_tokens: int

    def from_pairs(self, queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prepared[TypedTokens]:
        """One prompt for each document, with its own query or with the only one; see `PairPreparer`."""
        check_texts(queries, rules.query_param)
        check_texts(documents, rules.document_param)
        before, after = self._ends
        heads = [f"<Instruct>: {rules.instruction or INSTRUCTION}\n<Query>: {query}\n<Document>:" for query in queries]
        num_heads = [len(ids) for ids in self._encode(heads)]
        fit = DocumentFit(self.max_tokens, rules, len(documents))
        rooms = fit.rooms([len(before) + len(after) + num_head for num_head in num_heads])
        # Tokenized together, as the model was trained: the space between head and document belongs to the document's first word.
        texts = [f"{head} {text}" for head, text in zip(spread(heads, len(documents)), documents, strict=True)]
        sequences = []
        for index, (whole, num_head) in enumerate(zip(self._encode(texts), spread(num_heads, len(texts)), strict=True)):
            kept = fit.keep(index, whole[num_head:], rooms[index])
            sequences.append(TypedTokens([*before, *whole[:num_head], *kept, *after], []))
        return Prepared(sequences, fit.cut)

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        before, after = self._encode([_BEFORE, _AFTER])
        return before, after

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)
