"""What clients of other projects make of our answers: run in an environment of its own, prints one JSON object.

Started by `test_clients` as `python talk.py URL`; knows nothing of ours but the address.
"""

import json
import sys

import cohere
from langchain_cohere import CohereEmbeddings
from langchain_cohere import CohereRerank as LangChainRerank
from langchain_openai import OpenAIEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank

EMBEDDER, RERANKER = "all-minilm-l6-v2", "minilm-reranker"


def embeddings(url: str, texts: list[str]) -> dict[str, list[list[float]]]:
    """The vectors of `texts` as each client has them."""
    v1, v2 = cohere.Client("key", base_url=url), cohere.ClientV2("key", base_url=url)
    kind = "search_document"
    by_type = v2.embed(model=EMBEDDER, texts=texts, input_type=kind, embedding_types=["float"])
    # Its other way sends the ids of OpenAI's own vocabulary.
    langchain = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="key", model=EMBEDDER, check_embedding_ctx_length=False)
    langchain_cohere = CohereEmbeddings(base_url=url, cohere_api_key="key", model=EMBEDDER)
    llama_index = OpenAILikeEmbedding(api_base=f"{url}/v1", api_key="key", model_name=EMBEDDER)
    return {
        "cohere v1": v1.embed(model=EMBEDDER, texts=texts, input_type=kind).embeddings,
        "cohere v2": by_type.embeddings.float_,
        "langchain-openai": langchain.embed_documents(texts),
        "langchain-cohere": langchain_cohere.embed_documents(texts),
        "llama-index-openai-like": llama_index.get_text_embedding_batch(texts),
    }


def rankings(url: str, query: str, documents: list[str]) -> dict[str, list[tuple[str, float]]]:
    """(document, score), best first, as each client has them."""
    options = {"model": RERANKER, "query": query, "documents": documents}
    v1 = cohere.Client("key", base_url=url).rerank(**options)
    v2 = cohere.ClientV2("key", base_url=url).rerank(**options)
    langchain = LangChainRerank(base_url=url, cohere_api_key="key", model=RERANKER, top_n=None)
    rerankers = {
        "llama-index-cohere": CohereRerank(base_url=url, api_key="key", model=RERANKER, top_n=len(documents)),
        "llama-index-jina": JinaRerank(base_url=f"{url}/v1", api_key="key", model=RERANKER, top_n=len(documents)),
    }
    return {
        "cohere v1": [(documents[result.index], result.relevance_score) for result in v1.results],
        "cohere v2": [(documents[result.index], result.relevance_score) for result in v2.results],
        "langchain-cohere": [
            (documents[result["index"]], result["relevance_score"]) for result in langchain.rerank(documents, query)
        ],
        **{
            name: [
                (node.text, node.score)
                for node in reranker.postprocess_nodes(
                    [NodeWithScore(node=TextNode(text=text), score=0.0) for text in documents], query_str=query
                )
            ]
            for name, reranker in rerankers.items()
        },
    }


def main() -> None:
    """Both, for the texts on standard input."""
    url, asked = sys.argv[1], json.load(sys.stdin)
    answer = {
        "embeddings": embeddings(url, asked["documents"]),
        "rankings": rankings(url, asked["query"], asked["documents"]),
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
