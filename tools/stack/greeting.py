"""What a newcomer reads when everything is ready: where it is and three requests to try.

Called by __main__. Only text; the requests are run by the end-to-end tests.
"""

from __future__ import annotations


def greet(url: str, has_api_key: bool) -> str:
    """The text for a gateway at `url`."""
    key = ' -H "Authorization: Bearer $TRIVIUM_GATEWAY_API_KEY"' if has_api_key else ""
    requests = "\n\n".join(
        f"  curl {url}{path}{key} \\\n    -H 'Content-Type: application/json' -d '{body}'"
        for path, body in REQUESTS.items()
    )
    return f"""
Ready: {url} (for OpenAI's clients: {url}/v1)

Try in another terminal:

{requests}

Ctrl-C stops everything."""


REQUESTS = {
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
    '"temperature": 0}',
    "/v1/embeddings": '{"input": "Mont Blanc is the highest mountain of the Alps."}',
    "/v1/rerank": '{"query": "How high is Mont Blanc?", '
    '"documents": ["Mont Blanc lies in the Alps.", "Mont Blanc is 4806 m high."]}',
}
