"""The official client's chat completions, used as its documentation shows."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage

from tests.clients.target import CHAT_WEATHER_TOOL, ON_BOTH_ENGINES, PARIS, REPORT, City, Target

TOOLS: Any = [CHAT_WEATHER_TOOL]


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def call_of(message: ChatCompletionMessage) -> Any:
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert call.id.startswith("call_")
    return call


@ON_BOTH_ENGINES
def test_create(client: OpenAI, target: Target) -> None:
    completion = client.chat.completions.create(model=target.model, messages=said(target.script.hello))
    (choice,) = completion.choices
    assert (completion.object, completion.model) == ("chat.completion", target.model)
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", target.script.hello_answer)
    assert choice.message.tool_calls is None
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


@ON_BOTH_ENGINES
def test_create_as_a_stream_with_its_usage(client: OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "messages": said(target.script.long)}
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == target.script.long_answer
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert {chunk.id for chunk in chunks} == {last.id}
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    whole = client.chat.completions.create(**asked)
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_a_stream_has_no_usage_unless_it_is_asked_for(client: OpenAI, target: Target) -> None:
    chunks = list(client.chat.completions.create(model=target.model, messages=said(target.script.hello), stream=True))
    assert [chunk for chunk in chunks if chunk.usage or not chunk.choices] == []
    assert chunks[0].choices[0].delta.role == "assistant"


def test_the_stream_helper_accumulates(client: OpenAI, target: Target) -> None:
    with client.chat.completions.stream(model=target.model, messages=said(target.script.long)) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert "".join(event.delta for event in events if event.type == "content.delta") == target.script.long_answer
    assert [event.content for event in events if event.type == "content.done"] == [target.script.long_answer]
    assert final.choices[0].message.content == target.script.long_answer


@ON_BOTH_ENGINES
def test_parse_gives_a_model(client: OpenAI, target: Target) -> None:
    completion = client.chat.completions.parse(
        model=target.model, messages=said(target.script.paris), response_format=City
    )
    assert completion.choices[0].message.parsed == PARIS


@ON_BOTH_ENGINES
def test_a_parsed_stream(client: OpenAI, target: Target) -> None:
    with client.chat.completions.stream(
        model=target.model, messages=said(target.script.paris), response_format=City
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == PARIS


@ON_BOTH_ENGINES
def test_json_mode(client: OpenAI, target: Target) -> None:
    completion = client.chat.completions.create(
        model=target.model, messages=said(target.script.paris), response_format={"type": "json_object"}
    )
    assert City.model_validate_json(completion.choices[0].message.content or "") == PARIS


@ON_BOTH_ENGINES
def test_a_tool_is_called_and_answered(client: OpenAI, target: Target) -> None:
    messages = said(target.script.weather)
    first = client.chat.completions.create(model=target.model, messages=messages, tools=TOOLS).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    call = call_of(first.message)
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": REPORT}]
    second = client.chat.completions.create(model=target.model, messages=messages, tools=TOOLS).choices[0]
    assert (second.finish_reason, second.message.content) == ("stop", target.script.weather_answer)


@ON_BOTH_ENGINES
def test_a_call_is_streamed(client: OpenAI, target: Target) -> None:
    with client.chat.completions.stream(
        model=target.model, messages=said(target.script.weather), tools=TOOLS
    ) as stream:
        deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert "".join(deltas) == call_of(final.message).function.arguments


@ON_BOTH_ENGINES
def test_a_pydantic_tool_is_parsed_and_answered(client: OpenAI, target: Target) -> None:
    class get_weather(openai.BaseModel):
        city: str

    messages = said(target.script.weather)
    asked: Any = {"model": target.model, "tools": [openai.pydantic_function_tool(get_weather)]}
    message = client.chat.completions.parse(messages=messages, **asked).choices[0].message
    (call,) = message.tool_calls or []
    assert call.function.parsed_arguments == get_weather(city="Paris")
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": REPORT}]
    second = client.chat.completions.parse(messages=messages, **asked)
    assert second.choices[0].message.content == target.script.weather_answer


# openai 3.57.0 writes the parsed model back, and pydantic does not expect one.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_a_parsed_message_goes_back(client: OpenAI, target: Target) -> None:
    messages = said(target.script.paris)
    first = client.chat.completions.parse(model=target.model, messages=messages, response_format=City)
    messages += [first.choices[0].message, *said(target.script.hello)]
    second = client.chat.completions.create(model=target.model, messages=messages)
    assert second.choices[0].message.content == target.script.hello_answer


@ON_BOTH_ENGINES
def test_messages_carry_the_history(client: OpenAI, target: Target) -> None:
    messages = said(target.script.name)
    first = client.chat.completions.create(model=target.model, messages=messages)
    messages += [first.choices[0].message, *said(target.script.asked)]
    second = client.chat.completions.create(model=target.model, messages=messages)
    assert first.choices[0].message.content == target.script.name_answer
    assert second.choices[0].message.content == target.script.asked_answer


@ON_BOTH_ENGINES
def test_log_probabilities(client: OpenAI, target: Target) -> None:
    choice = client.chat.completions.create(
        model=target.model, messages=said(target.script.hello), logprobs=True, top_logprobs=2
    ).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(each.token for each in choice.logprobs.content) == target.script.hello_answer
    assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)


@ON_BOTH_ENGINES
def test_reasoning_comes_beside_the_text_and_goes_back(client: OpenAI, target: Target) -> None:
    messages = said(target.script.hello)
    asked: Any = {"model": target.model, "reasoning_effort": "medium"}
    first = client.chat.completions.create(messages=messages, **asked)
    message = first.choices[0].message
    assert message.content == target.script.hello_answer
    assert message.model_dump()["reasoning_content"].strip() == target.script.hello_thought
    assert first.usage is not None
    assert first.usage.completion_tokens_details is not None
    assert (first.usage.completion_tokens_details.reasoning_tokens or 0) > 0
    second = client.chat.completions.create(messages=[*messages, message, *said(target.script.hello)], **asked)
    assert second.choices[0].message.content == target.script.hello_answer


@ON_BOTH_ENGINES
def test_reasoning_is_streamed_before_the_text(client: OpenAI, target: Target) -> None:
    chunks = client.chat.completions.create(
        model=target.model, messages=said(target.script.hello), reasoning_effort="medium", stream=True
    )
    deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in chunks]
    kinds = [kind for delta in deltas for kind in ("reasoning_content", "content") if delta.get(kind)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == target.script.hello_thought
    assert "".join(delta.get("content", "") for delta in deltas) == target.script.hello_answer
    assert kinds == sorted(kinds, reverse=True)


def test_a_limit_of_tokens_is_a_finish_reason(client: OpenAI, target: Target) -> None:
    completion = client.chat.completions.create(
        model=target.model, messages=said(target.script.long), max_completion_tokens=3
    )
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3


def test_a_stored_completion_is_a_response_that_is_read_again(client: OpenAI, target: Target) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=target.model, messages=said(target.script.hello), store=True
    )
    response = client.responses.retrieve(raw.headers["x-longhaul-response"])
    assert response.output_text == raw.parse().choices[0].message.content == target.script.hello_answer


def test_errors_are_typed_and_name_fields_of_chat(client: OpenAI, target: Target) -> None:
    def refused(**fields: Any) -> openai.BadRequestError:
        asked: Any = {"model": target.model, "messages": said("Hi"), **fields}
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**asked)
        return raised.value

    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "no-url"}}]}]
    assert refused(temperature=9).param == "temperature"
    assert refused(messages=[]).param == "messages"
    assert refused(n=2).param == "n"
    assert (refused(messages=image).param or "").startswith("messages[0].content[0].image_url")
    assert refused(messages=[*said("Hi"), {"role": "tool", "tool_call_id": "no", "content": "18"}]).param == (
        "messages[1].tool_call_id"
    )
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=said("Hi"))
    assert missing.value.code == "model_not_found"


def test_an_error_in_a_stream_is_raised(client: OpenAI, scripted_target: Target) -> None:
    chunks = client.chat.completions.create(model=scripted_target.model, messages=said("/fail 3"), stream=True)
    with pytest.raises(openai.APIError):
        list(chunks)
