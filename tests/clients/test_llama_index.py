"""llama-index: its LLM for the Responses API, and OpenAILike for chat completions.

Functions import it, for that takes a second, and every process of `make test` collects this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from openai import DefaultHttpxClient

from tests.clients.target import PARIS, REPORT, City, Target

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from llama_index.llms.openai import OpenAIResponses
    from llama_index.llms.openai_like import OpenAILike


@pytest.fixture
def http_client() -> Iterator[Any]:
    with DefaultHttpxClient() as opened:
        yield opened


@pytest.fixture
def llm(target: Target, http_client: Any) -> OpenAIResponses:
    return _llm(target, http_client)


def _llm(target: Target, http_client: Any, **more: Any) -> OpenAIResponses:
    from llama_index.llms.openai import OpenAIResponses

    return OpenAIResponses(
        model=target.model,
        api_base=target.url,
        api_key="unused",
        context_window=32768,
        max_retries=0,
        http_client=http_client,
        **more,
    )


def chat_message(**fields: Any) -> Any:
    from llama_index.core.llms import ChatMessage

    return ChatMessage(**fields)


def get_weather(city: str) -> str:
    """Current weather of a city."""
    return REPORT


def test_complete(llm: OpenAIResponses, target: Target) -> None:
    assert llm.complete(target.script.hello).text == target.script.hello_answer


def test_stream_complete(llm: OpenAIResponses, target: Target) -> None:
    deltas = [chunk.delta or "" for chunk in llm.stream_complete(target.script.long)]
    assert "".join(deltas) == target.script.long_answer
    assert len(deltas) > 10


def test_messages_carry_the_history(llm: OpenAIResponses, target: Target) -> None:
    said = [chat_message(role="user", content=target.script.name)]
    first = llm.chat(said).message
    assert first.content == target.script.name_answer
    second = llm.chat([*said, first, chat_message(role="user", content=target.script.asked)]).message
    assert second.content == target.script.asked_answer


def test_a_tool_is_called_and_answered(llm: OpenAIResponses, target: Target) -> None:
    from llama_index.core.tools import FunctionTool

    tool = FunctionTool.from_defaults(get_weather)
    said = [chat_message(role="user", content=target.script.weather)]
    called = llm.chat_with_tools([tool], chat_history=said)
    (call,) = llm.get_tool_calls_from_response(called)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
    result = chat_message(
        role="tool", content=get_weather(**call.tool_kwargs), additional_kwargs={"call_id": call.tool_id}
    )
    answer = llm.chat_with_tools([tool], chat_history=[*said, called.message, result])
    assert answer.message.content == target.script.weather_answer


def test_a_structured_llm(llm: OpenAIResponses, target: Target) -> None:
    assert llm.as_structured_llm(City).complete(target.script.paris).raw == PARIS


def test_reasoning_is_shown_if_it_is_asked_for_by_hand(target: Target, http_client: Any) -> None:
    """llama-index sends its `reasoning_options` to a list of OpenAI's models only, and shows content and summary."""
    from llama_index.core.base.llms.types import ThinkingBlock

    thinking = _llm(target, http_client, additional_kwargs={"reasoning": {"effort": "medium"}})
    message = thinking.chat([chat_message(role="user", content=target.script.hello)]).message
    assert [block.content for block in message.blocks if isinstance(block, ThinkingBlock)] == [
        target.script.hello_thought
    ]
    assert message.content == target.script.hello_answer


@pytest.fixture
def like(target: Target, http_client: Any) -> OpenAILike:
    return _like(target, http_client)


def _like(target: Target, http_client: Any, **more: Any) -> OpenAILike:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model=target.model,
        api_base=target.url,
        api_key="unused",
        context_window=32768,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        http_client=http_client,
        **more,
    )


def test_chat_completions_answer_and_stream(like: OpenAILike, target: Target) -> None:
    assert like.complete(target.script.hello).text == target.script.hello_answer
    deltas = [chunk.delta or "" for chunk in like.stream_complete(target.script.long)]
    assert "".join(deltas) == target.script.long_answer


def test_chat_completions_call_a_tool(like: OpenAILike, target: Target) -> None:
    from llama_index.core.tools import FunctionTool

    tool = FunctionTool.from_defaults(get_weather)
    said = [chat_message(role="user", content=target.script.weather)]
    called = like.chat_with_tools([tool], chat_history=said)
    (call,) = like.get_tool_calls_from_response(called)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
    result = chat_message(
        role="tool", content=get_weather(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id}
    )
    answer = like.chat_with_tools([tool], chat_history=[*said, called.message, result])
    assert answer.message.content == target.script.weather_answer


def test_chat_completions_fill_a_model_by_a_call(scripted_target: Target, http_client: Any) -> None:
    """By a call that the model must make: `should_use_structured_outputs` needs an older openai."""
    call = json.dumps({"name": "City", "arguments": PARIS.model_dump()})
    structured = _like(scripted_target, http_client).as_structured_llm(City)
    assert structured.complete(f"/raw <tool_call>{call}</tool_call>").raw == PARIS


def test_chat_completions_show_reasoning(target: Target, http_client: Any) -> None:
    from llama_index.core.base.llms.types import ThinkingBlock

    thinking = _like(target, http_client, additional_kwargs={"reasoning_effort": "medium"})
    message = thinking.chat([chat_message(role="user", content=target.script.hello)]).message
    shown = [(block.content or "").strip() for block in message.blocks if isinstance(block, ThinkingBlock)]
    assert shown == [target.script.hello_thought]
