"""What the official client alone does: parsed streams and tools, resources beside responses, WebSockets."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.clients.target import ON_BOTH_ENGINES, PARIS, City, Target
from tests.support.waiting import until_sync


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def exact(target: Target, api: str) -> Any:
    """Whatever the models file says: the likeliest tokens, and no reasoning."""
    effort: Any = {"reasoning": {"effort": "none"}} if api == "responses" else {"reasoning_effort": "none"}
    return {"model": target.model, "temperature": 0, **effort}


class get_weather(openai.BaseModel):  # the name of the call
    city: str


def test_a_parsed_stream_and_a_parsed_tool(client: OpenAI, target: Target) -> None:
    with client.responses.stream(model=target.model, input=target.script.paris, text_format=City) as stream:
        stream.until_done()
        assert stream.get_final_response().output_parsed == PARIS
    tool: Any = openai.pydantic_function_tool(get_weather)["function"]
    asked: Any = {"model": target.model, "tools": [{"type": "function", **tool}]}
    (call,) = client.responses.parse(input=target.script.weather, **asked).output
    assert call.type == "function_call"
    assert call.parsed_arguments in ({"city": "Paris"}, get_weather(city="Paris"))


# openai 3.57.0 writes the parsed model back, and pydantic does not expect one.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_a_parsed_stream_and_a_parsed_tool_of_completions_go_back(client: OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "messages": said(target.script.paris), "response_format": City}
    with client.chat.completions.stream(**asked) as stream:
        stream.until_done()
        message = stream.get_final_completion().choices[0].message
    assert message.parsed == PARIS
    more: Any = [*said(target.script.paris), message, *said(target.script.weather)]
    tools: Any = [openai.pydantic_function_tool(get_weather)]
    called = client.chat.completions.parse(model=target.model, messages=more, tools=tools).choices[0].message
    (call,) = called.tool_calls or []
    assert call.function.parsed_arguments == get_weather(city="Paris")


@ON_BOTH_ENGINES
def test_json_mode_and_log_probabilities(client: OpenAI, target: Target) -> None:
    form: Any = {"type": "json_object"}
    response = client.responses.create(input=target.script.paris, text={"format": form}, **exact(target, "responses"))
    asked: Any = {"messages": said(target.script.paris), "response_format": form, **exact(target, "chat")}
    content = client.chat.completions.create(**asked).choices[0].message.content
    assert [City.model_validate_json(text or "") for text in (response.output_text, content)] == [PARIS, PARIS]

    included: Any = ["message.output_text.logprobs"]
    message: Any = client.responses.create(
        input=target.script.hello, include=included, top_logprobs=2, **exact(target, "responses")
    ).output[0]
    choice: Any = client.chat.completions.create(
        messages=said(target.script.hello), logprobs=True, top_logprobs=2, **exact(target, "chat")
    ).choices[0]
    for logprobs in (message.content[0].logprobs, choice.logprobs.content):
        assert "".join(each.token for each in logprobs) == target.script.hello_answer
        assert {len(each.top_logprobs) for each in logprobs} == {2}


def test_a_conversation_and_its_items(client: OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "conversation": client.conversations.create().id}
    client.responses.create(input=target.script.name, **asked)
    second = client.responses.create(input=target.script.asked, **asked)
    assert second.output_text == target.script.asked_answer
    items = list(client.conversations.items.list(asked["conversation"], order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant"] * 2  # type: ignore[union-attr]
    response = client.responses.create(model=target.model, input=[*said("0"), *said("1"), *said("Hello!")])
    listed = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
    assert [item.content[0].text for item in listed] == ["0", "1", "Hello!"]  # type: ignore[union-attr]


def test_input_is_counted_and_compacted(client: OpenAI, target: Target) -> None:
    counted = client.responses.input_tokens.count(model=target.model, input=target.script.hello)
    response = client.responses.create(model=target.model, input=target.script.hello)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens
    compacted = client.responses.compact(model=target.model, input=said(target.script.name))
    continued: Any = [*(item.to_dict() for item in compacted.output), *said(target.script.hello)]
    assert client.responses.create(model=target.model, input=continued).status == "completed"


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


# openai 3.57.0 opens its synchronous sockets as websockets 17 would no longer have it.
@ON_BOTH_ENGINES
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")
def test_websocket(client: OpenAI, target: Target) -> None:
    """With `store` false, as agents use it. The first turn generates nothing and only prepares the prompt."""
    with client.responses.connect() as connection:

        def final(**asked: Any) -> Any:
            connection.response.create(store=False, **asked, **exact(target, "responses"))
            for event in connection:
                assert event.type != "error", event
                if event.type == "response.completed":
                    return event.response
            raise AssertionError("the socket was closed")

        ready = final(input=[{"role": "developer", "content": "Be brief."}], generate=False)
        assert (ready.output, ready.usage.input_tokens > 0) == ([], True)
        assert final(input=target.script.hello, previous_response_id=ready.id).status == "completed"
        first = final(input=target.script.name)
        assert first.output_text == target.script.name_answer
        assert final(input=target.script.asked, previous_response_id=first.id).output_text == (
            target.script.asked_answer
        )
