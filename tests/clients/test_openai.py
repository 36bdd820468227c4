"""The official client, used as its documentation shows."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from tests.clients.target import ON_BOTH_ENGINES, PARIS, REPORT, WEATHER_TOOL, City, Target
from tests.support.waiting import until_sync

TOOLS: Any = [WEATHER_TOOL]


def call_of(response: Any) -> ResponseFunctionToolCall:
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Paris"}
    assert call.call_id.startswith("call_")
    assert call.status == "completed"
    return call


def answered(call: ResponseFunctionToolCall) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": REPORT}


@ON_BOTH_ENGINES
def test_create(client: OpenAI, target: Target) -> None:
    response = client.responses.create(model=target.model, input=target.script.hello)
    assert (response.status, response.output_text) == ("completed", target.script.hello_answer)
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


@ON_BOTH_ENGINES
def test_create_as_a_stream(client: OpenAI, target: Target) -> None:
    text = ""
    with client.responses.create(model=target.model, input=target.script.long, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
    assert event.type == "response.completed"
    assert text == event.response.output_text == target.script.long_answer


def test_the_stream_helper_accumulates(client: OpenAI, target: Target) -> None:
    with client.responses.stream(model=target.model, input=target.script.hello) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == target.script.hello_answer


@ON_BOTH_ENGINES
def test_the_stream_helper_comes_back_to_a_background_response(client: OpenAI, target: Target) -> None:
    with client.responses.stream(response_id=_background(client, target), starting_after=5) as resumed:
        events = list(resumed)
        final = resumed.get_final_response()
    assert events[0].sequence_number == 6
    assert final.output_text == target.script.long_answer


def _background(client: OpenAI, target: Target) -> str:
    stream = client.responses.create(model=target.model, input=target.script.long, background=True, stream=True)
    with stream:
        return next(event.response.id for event in stream if event.type == "response.created")


@ON_BOTH_ENGINES
def test_parse_gives_a_model(client: OpenAI, target: Target) -> None:
    response = client.responses.parse(model=target.model, input=target.script.paris, text_format=City)
    assert response.output_parsed == PARIS


@ON_BOTH_ENGINES
def test_a_parsed_stream(client: OpenAI, target: Target) -> None:
    with client.responses.stream(model=target.model, input=target.script.paris, text_format=City) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == PARIS


@ON_BOTH_ENGINES
def test_json_mode(client: OpenAI, target: Target) -> None:
    form: Any = {"format": {"type": "json_object"}}
    response = client.responses.create(model=target.model, input=target.script.paris, text=form)
    assert City.model_validate_json(response.output_text) == PARIS


@ON_BOTH_ENGINES
def test_a_tool_is_called_and_answered_by_the_whole_input(client: OpenAI, target: Target) -> None:
    said: list[Any] = [{"role": "user", "content": target.script.weather}]
    first = client.responses.create(model=target.model, input=said, tools=TOOLS)
    call = call_of(first)
    said += [*first.output, answered(call)]
    second = client.responses.create(model=target.model, input=said, tools=TOOLS)
    assert second.output_text == target.script.weather_answer


@ON_BOTH_ENGINES
def test_a_tool_is_called_and_answered_by_previous_response_id(client: OpenAI, target: Target) -> None:
    first = client.responses.create(model=target.model, input=target.script.weather, tools=TOOLS)
    second = client.responses.create(
        model=target.model, input=[answered(call_of(first))], tools=TOOLS, previous_response_id=first.id
    )
    assert second.output_text == target.script.weather_answer


@ON_BOTH_ENGINES
def test_a_call_is_streamed(client: OpenAI, target: Target) -> None:
    with client.responses.stream(model=target.model, input=target.script.weather, tools=TOOLS) as stream:
        arguments = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        call = call_of(stream.get_final_response())
    assert "".join(arguments) == call.arguments


@ON_BOTH_ENGINES
def test_a_pydantic_tool_is_parsed(client: OpenAI, target: Target) -> None:
    class get_weather(openai.BaseModel):
        city: str

    tool: Any = openai.pydantic_function_tool(get_weather)["function"]
    response = client.responses.parse(
        model=target.model, input=target.script.weather, tools=[{"type": "function", **tool}]
    )
    (call,) = response.output
    assert call.type == "function_call"
    assert call.parsed_arguments in ({"city": "Paris"}, get_weather(city="Paris"))


@ON_BOTH_ENGINES
def test_a_chain_remembers(client: OpenAI, target: Target) -> None:
    first = client.responses.create(model=target.model, input=target.script.name)
    assert first.output_text == target.script.name_answer
    second = client.responses.create(model=target.model, input=target.script.asked, previous_response_id=first.id)
    assert second.output_text == target.script.asked_answer
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


@ON_BOTH_ENGINES
def test_a_conversation_remembers(client: OpenAI, target: Target) -> None:
    conversation = client.conversations.create()
    client.responses.create(model=target.model, input=target.script.name, conversation=conversation.id)
    second = client.responses.create(
        model=target.model, input=target.script.asked, conversation={"id": conversation.id}
    )
    assert second.output_text == target.script.asked_answer
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.type for item in items] == ["message"] * 4


def test_input_items_are_paged(client: OpenAI, target: Target) -> None:
    said: Any = [{"role": "user", "content": f"{number}"} for number in range(5)]
    response = client.responses.create(model=target.model, input=[*said, {"role": "user", "content": "Hello!"}])
    items = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == ["0", "1", "2", "3", "4", "Hello!"]  # type: ignore[union-attr]


@ON_BOTH_ENGINES
def test_input_tokens_are_counted(client: OpenAI, target: Target) -> None:
    counted = client.responses.input_tokens.count(model=target.model, input=target.script.hello)
    response = client.responses.create(model=target.model, input=target.script.hello)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


@ON_BOTH_ENGINES
def test_compacted_input_continues(client: OpenAI, target: Target) -> None:
    compacted = client.responses.compact(
        model=target.model,
        input=[
            {"role": "user", "content": target.script.name},
            {"role": "assistant", "content": target.script.name_answer},
        ],
    )
    assert compacted.object == "response.compaction"
    said: Any = [item.to_dict() for item in compacted.output]
    response = client.responses.create(
        model=target.model, input=[*said, {"role": "user", "content": target.script.hello}]
    )
    assert response.status == "completed"


@ON_BOTH_ENGINES
def test_background_is_polled_cancelled_and_deleted(client: OpenAI, target: Target) -> None:
    done = client.responses.create(model=target.model, input=target.script.hello, background=True)
    assert done.status == "queued"
    until_sync(lambda: client.responses.retrieve(done.id).status == "completed")
    client.responses.delete(done.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(done.id)
    endless = client.responses.create(
        model=target.model, input=target.script.long, background=True, extra_body={"ignore_eos": True}
    )
    assert client.responses.cancel(endless.id).status == "cancelled"


def test_errors_are_typed(client: OpenAI, target: Target) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="no-such-model", input="Hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model=target.model, input="Hi", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(model=target.model, input="Hi", previous_response_id="resp_no")
    assert unknown.value.code == "previous_response_not_found"


@ON_BOTH_ENGINES
def test_log_probabilities(client: OpenAI, target: Target) -> None:
    response = client.responses.create(
        model=target.model, input=target.script.hello, include=["message.output_text.logprobs"], top_logprobs=2
    )
    message = response.output[0]
    assert isinstance(message, ResponseOutputMessage)
    logprobs = message.content[0].logprobs  # type: ignore[union-attr]
    assert logprobs is not None
    assert "".join(logprob.token for logprob in logprobs) == target.script.hello_answer
    assert all(len(logprob.top_logprobs) == 2 for logprob in logprobs)


@ON_BOTH_ENGINES
def test_reasoning_is_an_item_of_its_own(client: OpenAI, target: Target) -> None:
    with client.responses.stream(
        model=target.model, input=target.script.hello, reasoning={"effort": "medium"}
    ) as stream:
        thought = [event.delta for event in stream if event.type == "response.reasoning_text.delta"]
        response = stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert "".join(thought).strip()
    assert response.output_text == target.script.hello_answer
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0


# openai 3.57.0 opens its synchronous sockets as websockets 17 would no longer have it.
@ON_BOTH_ENGINES
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")
def test_websocket(client: OpenAI, target: Target) -> None:
    """With `store` false, as agents use it. The first turn generates nothing and only prepares the prompt."""
    with client.responses.connect() as connection:
        said: Any = [{"role": "developer", "content": "Be brief."}]
        connection.response.create(model=target.model, input=said, store=False, generate=False)
        ready = _final(connection)
        assert ready.output == []
        assert ready.usage.input_tokens > 0
        connection.response.create(
            model=target.model, input=target.script.hello, previous_response_id=ready.id, store=False
        )
        assert _final(connection).status == "completed"
        connection.response.create(model=target.model, input=target.script.name, store=False)
        first = _final(connection)
        assert first.output_text == target.script.name_answer
        connection.response.create(
            model=target.model, input=target.script.asked, previous_response_id=first.id, store=False
        )
        assert _final(connection).output_text == target.script.asked_answer


def _final(connection: Any) -> Any:
    for event in connection:
        assert event.type != "error", event
        if event.type == "response.completed":
            return event.response
    raise AssertionError("the socket was closed")
