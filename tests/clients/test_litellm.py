"""LiteLLM's SDK: its Responses API, its chat completions, and chat completions over its Responses API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clients.target import CHAT_WEATHER_TOOL, PARIS, REPORT, THINKING, WEATHER_TOOL, City, Target
from tests.support.longhaul import Longhaul


def litellm() -> Any:
    """The package, which takes three seconds to import: every process of `make test` collects this file."""
    import litellm

    return litellm


# litellm 1.109.1: about its own types, at the first call.
pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("litellm_connections"),
    pytest.mark.filterwarnings(r"ignore:Items? .* using the `ReadOnly` qualifier:UserWarning"),
]

TOOLS: Any = [WEATHER_TOOL]
CHAT_TOOLS: Any = [CHAT_WEATHER_TOOL]


@pytest.fixture
def to(target: Target) -> dict[str, Any]:
    """Returns the arguments that point LiteLLM at the server."""
    return {"model": f"openai/{target.model}", "api_base": target.url, "api_key": "unused", "max_retries": 0}


@pytest.fixture
def chat_to(to: dict[str, Any], target: Target) -> dict[str, Any]:
    return {**to, "model": f"openai/responses/{target.model}"}


def test_responses(to: dict[str, Any], target: Target) -> None:
    response = litellm().responses(input=target.script.hello, **to)
    assert response.status == "completed"
    assert response.output_text == target.script.hello_answer
    assert response.usage.output_tokens > 0


def test_responses_as_a_stream(to: dict[str, Any], target: Target) -> None:
    events = list(litellm().responses(input=target.script.long, stream=True, **to))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == (
        target.script.long_answer
    )
    assert events[-1].type == "response.completed"


def test_a_tool_is_called_and_answered_by_previous_response_id(to: dict[str, Any], target: Target) -> None:
    first = litellm().responses(input=target.script.weather, tools=TOOLS, **to)
    (call,) = first.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"city": "Paris"})
    said: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": REPORT}]
    second = litellm().responses(input=said, tools=TOOLS, previous_response_id=first.id, **to)
    assert second.output_text == target.script.weather_answer


def test_a_structured_output(to: dict[str, Any], target: Target) -> None:
    response = litellm().responses(input=target.script.paris, text_format=City, **to)
    assert City.model_validate_json(response.output_text) == PARIS


def test_a_response_is_read_and_deleted(to: dict[str, Any], target: Target) -> None:
    response = litellm().responses(input=target.script.hello, **to)
    at = {name: to[name] for name in ("api_base", "api_key")} | {"custom_llm_provider": "openai"}
    assert litellm().get_responses(response.id, **at).output_text == target.script.hello_answer
    litellm().delete_responses(response.id, **at)
    with pytest.raises(litellm().NotFoundError):
        litellm().get_responses(response.id, **at)


def test_an_error_is_typed(to: dict[str, Any]) -> None:
    with pytest.raises(litellm().BadRequestError, match="temperature"):
        litellm().responses(input="Hi", temperature=9, **to)


def test_completion(chat_to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.hello}]
    answer = litellm().completion(messages=said, **chat_to)
    assert answer.choices[0].message.content == target.script.hello_answer
    assert answer.choices[0].finish_reason == "stop"


def test_completion_as_a_stream(chat_to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.long}]
    chunks = litellm().completion(messages=said, stream=True, **chat_to)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == target.script.long_answer


async def test_acompletion_makes_a_tool_loop(chat_to: dict[str, Any], target: Target) -> None:
    said: list[Any] = [{"role": "user", "content": target.script.weather}]
    first = await litellm().acompletion(messages=said, tools=CHAT_TOOLS, **chat_to)
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    said += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": REPORT}]
    second = await litellm().acompletion(messages=said, tools=CHAT_TOOLS, **chat_to)
    assert second.choices[0].message.content == target.script.weather_answer


def test_responses_show_reasoning(to: dict[str, Any], target: Target) -> None:
    response = litellm().responses(input=target.script.hello, reasoning=THINKING, **to)
    thought, _ = response.output
    assert [part.text for part in thought.summary] == [target.script.hello_thought]


def test_completion_shows_reasoning(chat_to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.hello}]
    message = litellm().completion(messages=said, reasoning_effort=THINKING, **chat_to).choices[0].message
    assert (message.reasoning_content, message.content) == (target.script.hello_thought, target.script.hello_answer)


def test_completion_shows_reasoning_as_it_streams(chat_to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.hello}]
    chunks = litellm().completion(messages=said, reasoning_effort=THINKING, stream=True, **chat_to)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    shown = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert shown == target.script.hello_thought
    assert "".join(delta.content or "" for delta in deltas) == target.script.hello_answer


def test_completion_without_any_text_is_empty(scripted: Longhaul) -> None:
    answer = litellm().completion(
        model="openai/responses/scripted",
        api_base=f"{scripted.url}/v1",
        api_key="unused",
        max_retries=0,
        messages=[{"role": "user", "content": "/raw "}],
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")


def test_plain_completion(to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.hello}]
    answer = litellm().completion(messages=said, temperature=0, max_tokens=100, **to)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (target.script.hello_answer, "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


# litellm 1.109.1 reads a chunk's computed fields as pydantic 2 no longer likes it.
@pytest.mark.filterwarnings("ignore:Accessing the 'model_computed_fields':pydantic.PydanticDeprecatedSince211")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_fields':pydantic.PydanticDeprecatedSince211")
def test_plain_completion_as_a_stream_with_its_usage(to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.long}]
    chunks = list(litellm().completion(messages=said, stream=True, stream_options={"include_usage": True}, **to))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        target.script.long_answer
    )
    assert chunks[-1].usage.completion_tokens > 0


async def test_plain_acompletion_makes_a_tool_loop(to: dict[str, Any], target: Target) -> None:
    said: list[Any] = [{"role": "user", "content": target.script.weather}]
    first = await litellm().acompletion(messages=said, tools=CHAT_TOOLS, tool_choice="auto", **to)
    message = first.choices[0].message
    (call,) = message.tool_calls
    assert (first.choices[0].finish_reason, json.loads(call.function.arguments)) == ("tool_calls", {"city": "Paris"})
    said += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": REPORT}]
    second = await litellm().acompletion(messages=said, tools=CHAT_TOOLS, **to)
    assert second.choices[0].message.content == target.script.weather_answer


def test_plain_completion_fills_a_model(to: dict[str, Any], target: Target) -> None:
    said = [{"role": "user", "content": target.script.paris}]
    answer = litellm().completion(messages=said, response_format=City, **to)
    assert City.model_validate_json(answer.choices[0].message.content) == PARIS


@pytest.mark.parametrize("stream", [False, True])
def test_plain_completion_shows_reasoning(to: dict[str, Any], target: Target, stream: bool) -> None:
    """As aider asks for it, too. LiteLLM sends `reasoning_effort` to names that it knows, and if it is allowed to."""
    said = [{"role": "user", "content": target.script.hello}]
    allowed = {"reasoning_effort": "medium", "allowed_openai_params": ["reasoning_effort"]}
    answer = litellm().completion(messages=said, stream=stream, **allowed, **to)
    messages = [chunk.choices[0].delta for chunk in answer] if stream else [answer.choices[0].message]
    shown = "".join(getattr(message, "reasoning_content", None) or "" for message in messages)
    assert shown.strip() == target.script.hello_thought
    assert "".join(message.content or "" for message in messages) == target.script.hello_answer


def test_an_error_of_plain_completion_names_a_field_of_chat(to: dict[str, Any]) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "no", "content": "18"}]
    with pytest.raises(litellm().BadRequestError, match=r"messages\[1\]"):
        litellm().completion(messages=said, **to)


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    await litellm().close_litellm_async_clients()
