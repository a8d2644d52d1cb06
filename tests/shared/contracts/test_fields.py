"""Every field of OpenAI's public schema stands in exactly one of the three lists, and the refused ones say so by name."""

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)
from pydantic import ValidationError

from shared.contracts.chat import ChatRequest
from shared.contracts.completions import CompletionRequest
from shared.contracts.conversation import ChatMessage
from shared.contracts.embeddings import EmbeddingRequest
from shared.contracts.fields import Only, Standing, standing
from shared.contracts.generation import StreamOptions
from shared.contracts.rerank import RerankRequest
from shared.contracts.wire import one_by_one
from shared.http.handlers import invalid_request_from

MESSAGES = [
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
]
PUBLIC = [
    (ChatRequest, chat_create_params.CompletionCreateParamsBase, {"stream"}),
    (CompletionRequest, completion_create_params.CompletionCreateParamsBase, {"stream"}),
    (EmbeddingRequest, embedding_create_params.EmbeddingCreateParams, set()),
    (StreamOptions, ChatCompletionStreamOptionsParam, set()),
    *[(ChatMessage, message, set()) for message in MESSAGES],
]
LEAST = {
    ChatRequest: {"messages": [{"role": "user", "content": "hi"}]},
    CompletionRequest: {"prompt": "hi"},
    EmbeddingRequest: {"input": "hi"},
    StreamOptions: {},
    ChatMessage: {"role": "assistant", "content": "hi"},
}
REFUSED = [
    (contract, name)
    for contract in LEAST
    for name, field in contract.model_fields.items()
    if standing(field.metadata) is Standing.REFUSED
]
SAMPLES = [True, False, 7, "x", "none", [{"x": 1}], ["text", "audio"], {"type": "x"}, {"x": 1}]


@pytest.mark.parametrize(("contract", "public", "more"), PUBLIC)
def test_every_public_field_is_declared(contract, public, more):
    assert set(public.__annotations__) | more <= set(contract.model_fields)


@pytest.mark.parametrize(("contract", "name"), REFUSED)
def test_a_refused_field_is_refused_by_name_and_taken_at_its_neutral_values(contract, name):
    (marker,) = [item for item in contract.model_fields[name].metadata if isinstance(item, Only)]
    messages = []
    for value in SAMPLES:
        if value in marker.neutral:
            continue
        with pytest.raises(ValidationError) as caught:
            contract.model_validate({**LEAST[contract], name: value})
        error = invalid_request_from(caught.value.errors())
        assert error.param.partition(".")[0] == name
        messages.append(error.message)
    assert any("leave it out" in message for message in messages), "no sample has the field's type"
    for value in (None, *marker.neutral):
        contract.model_validate({**LEAST[contract], name: value})


def test_the_three_lists_hold_what_they_are_meant_to():
    lists = {
        kind: {n for n, f in ChatRequest.model_fields.items() if standing(f.metadata) is kind} for kind in Standing
    }
    assert {"temperature", "messages", "logprobs", "chat_template_kwargs"} <= lists[Standing.SUPPORTED]
    assert {"tools", "functions", "audio", "web_search_options", "reasoning_effort"} <= lists[Standing.REFUSED]
    assert lists[Standing.HARMLESS] == {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "prediction",
    }


@pytest.mark.parametrize(
    ("contract", "body", "message"),
    [
        (EmbeddingRequest, {"input": 5}, "input: Input should be a valid string or a valid list"),
        (RerankRequest, {"documents": [{"text": "a", "id": 1}]}, "documents.0.id: Extra inputs are not permitted"),
        (RerankRequest, {"documents": [{}]}, "documents.0.text: Field required"),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "Id": 1}]}]},
            "messages.0.content.0.Id: Extra inputs are not permitted",
        ),
    ],
)
def test_a_field_of_several_types_is_named_as_the_client_wrote_it(contract, body, message):
    with pytest.raises(ValidationError) as caught:
        contract.model_validate({"query": "a", **body} if contract is RerankRequest else body)
    error = invalid_request_from(caught.value.errors())
    assert (error.message, error.param) == (message, message.partition(":")[0])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([7] * 999 + [-1], "Input should be greater than or equal to 0"),
        ([[7]] * 999 + [[-1]], "Input should be greater than or equal to 0"),
        (["a"] * 999 + [None], "Input should be a valid string"),
    ],
)
@pytest.mark.parametrize(("contract", "field"), [(CompletionRequest, "prompt"), (EmbeddingRequest, "input")])
def test_a_long_list_with_a_wrong_item_is_one_error_for_each_type_it_is_not(contract, field, items, message):
    with pytest.raises(ValidationError) as caught:
        contract.model_validate({field: items})
    assert caught.value.error_count() == 4
    assert message in invalid_request_from(caught.value.errors()).message


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([5, 7], [[5, 7]]),
        ([[5], [7, 9]], [[5], [7, 9]]),
        ([[], [7]], [[], [7]]),
        ([], []),
    ],
)
def test_ids_alone_are_one_input_and_lists_of_them_are_many(given, items):
    assert list(one_by_one(CompletionRequest(prompt=given).prompt)) == items
