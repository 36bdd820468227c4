"""Calls that the server runs, as users see them: processes, real MCP servers, the openai package; and kill -9."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.longhaul import Longhaul, send_all
from tests.support.tool_servers import ToolProcess, call, turns
from tests.support.waiting import until, until_sync

MODEL = "scripted"
NEVER: Any = {"type": "mcp", "server_label": "tests", "require_approval": "never"}
TOOLS = [
    NEVER,
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "local", "require_approval": "never"},
]
SAID = turns(
    f"<think>Well.</think>Look: {call('tests__echo', text='é👋')}{call('python', code='1+1')}",
    call("local__echo", text="two"),
    "It said: {results}",
)
ASKED: dict[str, Any] = {"model": MODEL, "input": SAID, "tools": TOOLS}
TYPES = ["mcp_list_tools", "mcp_list_tools", "reasoning", "message", "mcp_call", "code_interpreter_call", "mcp_call"]


@pytest.fixture
def client(pair: Longhaul) -> Iterator[OpenAI]:
    with pair.client() as opened:
        yield opened


def check(response: Any) -> None:
    assert response.status == "completed"
    assert [item.type for item in response.output] == [*TYPES, "message"]
    echo, code, local = response.output[4], response.output[5], response.output[6]
    assert (echo.output, echo.status, local.output) == ("echo é👋", "completed", "echo two")
    assert (code.code, code.status) == ("1+1", "completed")
    assert response.output_text == "Look: It said: echo two"


def test_tools_run_in_every_mode(client: OpenAI) -> None:
    check(client.responses.create(**ASKED))
    with client.responses.stream(**ASKED) as stream:
        kinds = {event.type for event in stream}
        check(stream.get_final_response())
    assert {"response.mcp_call_arguments.delta", "response.code_interpreter_call_code.delta"} <= kinds
    assert "response.code_interpreter_call.interpreting" in kinds

    with client.responses.create(**ASKED, background=True, stream=True) as stream:
        whole = [event.model_dump() for event in stream]
    response_id = whole[0]["response"]["id"]
    for after in range(0, len(whole), 7):
        with client.responses.retrieve(response_id, stream=True, starting_after=after) as rest:
            assert [event.model_dump() for event in rest] == whole[after + 1 :]
    check(client.responses.retrieve(response_id))


@pytest.mark.parametrize("approve", [None, True, False])
async def test_an_agent_uses_a_hosted_mcp_tool_and_is_asked_for_approval(
    pair: Longhaul, tools: ToolProcess, approve: bool | None
) -> None:
    from agents import Agent, HostedMCPTool, OpenAIResponsesModel, RunConfig, Runner

    asked = []

    def decide(request: Any) -> Any:
        asked.append(request.data.arguments)
        return {"approve": approve}

    text = f"agent-{approve}"
    config: Any = NEVER if approve is None else {"type": "mcp", "server_label": "tests"}
    tool = HostedMCPTool(tool_config=config, on_approval_request=None if approve is None else decide)
    async with pair.async_client() as opened:
        run = RunConfig(tracing_disabled=True, model=OpenAIResponsesModel(MODEL, opened))
        said = turns(call("tests__echo", text=text), "Thanks: {results}")
        result = Runner.run_streamed(Agent(name="Assistant", tools=[tool]), said, run_config=run)
        kinds = {event.data.type async for event in result.stream_events() if event.type == "raw_response_event"}
    assert asked == ([] if approve is None else [f'{{"text": "{text}"}}'])
    assert tools.count(f"begun echo {text}") == (approve is not False)
    assert (result.final_output == f"Thanks: echo {text}") is (approve is not False)
    assert ("response.mcp_call.completed" in kinds) is (approve is not False)


WEATHER: Any = {"type": "function", "name": "weather", "parameters": {}, "strict": False}
CITIES = {"call_1": "Paris", "call_2": "Rome"}
DEGREES = {"call_2": "Rome has 28 degrees", "call_1": "Paris has 17 degrees"}
"""By call, in the order in which they arrive: the second call's output is there first."""
IN_ORDER = f"{DEGREES['call_1']}; {DEGREES['call_2']}"


def test_outputs_of_parallel_calls_that_arrive_in_another_order_are_shown_with_their_calls(client: OpenAI) -> None:
    """A template that shows no ids, as this engine's, would give Rome the degrees of Paris."""
    calls = [call("weather", city=city) for city in CITIES.values()]
    asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER]}
    first = client.responses.create(**asked, input=turns("".join(calls), "{results}"))
    made = [item for item in first.output if item.type == "function_call"]
    ids = dict(zip(CITIES, (item.call_id for item in made), strict=True))
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": ids[each], "output": output} for each, output in DEGREES.items()
    ]
    sent: list[Any] = [{"role": "user", "content": turns("", "{results}")}, *made, *outputs]
    for fields in ({"input": outputs, "previous_response_id": first.id}, {"input": sent}):
        assert client.responses.create(**asked, **fields).output_text == IN_ORDER


def test_chat_shows_outputs_of_parallel_calls_in_the_order_of_their_calls(client: OpenAI) -> None:
    calls: list[Any] = [
        {"id": id_, "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
        for id_, city in CITIES.items()
    ]
    messages: list[Any] = [
        {"role": "user", "content": turns("", "{results}")},
        {"role": "assistant", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id_, "content": output} for id_, output in DEGREES.items()),
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    assert answer.choices[0].message.content == IN_ORDER


def test_a_message_shows_what_hosted_tools_did_and_takes_it_back(pair: Longhaul) -> None:
    script = turns(f"Look: {call('python', code='1+1')}", "Thanks.")
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": script}]}
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
    with pair.http() as http:
        message = http.post("/v1/messages", json={**asked, "tools": tools}).raise_for_status().json()
        streamed = http.post("/v1/messages", json={**asked, "tools": tools, "stream": True}).raise_for_status().text
        said = {"role": "assistant", "content": message["content"]}
        turn = {**asked, "messages": [*asked["messages"], said, {"role": "user", "content": "/say Again."}]}
        again = http.post("/v1/messages", json={**turn, "tools": tools}).raise_for_status().json()
        refused = http.post("/v1/messages", json={**asked, "tools": [{"type": "bash_20250124", "name": "bash"}]})
    look, use, result, thanks = message["content"]
    assert (look["text"].strip(), thanks["text"], message["stop_reason"]) == ("Look:", "Thanks.", "end_turn")
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "code_execution", {"code": "1+1"})
    assert (result["type"], result["tool_use_id"]) == ("code_execution_tool_result", use["id"])
    starts = [
        json.loads(line[6:]) for line in streamed.splitlines() if line.startswith('data: {"type":"content_block_st')
    ]
    kinds = [event["content_block"]["type"] for event in starts if event["type"] == "content_block_start"]
    assert kinds == [block["type"] for block in message["content"]]
    assert again["content"][-1]["text"] == "Again."
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (
        "'tools.0.type': 'bash_20250124' is not supported yet; declare it as a tool"
        in refused.json()["error"]["message"]
    )


async def final(client: AsyncOpenAI, response_id: str) -> Any:
    async def ended() -> Any:
        response = await client.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return await until(ended, what=f"{response_id} is final")


async def test_kill_9_inside_a_call_and_between_two_calls(pair: Longhaul, tools: ToolProcess) -> None:
    """Calls that were over are not repeated; the one that ran is repeated if its server says that it may be."""
    long = "x" * 1500
    async with pair.async_client() as client:

        async def begun(label: str, *script: str) -> str:
            mcp: Any = {**NEVER, "server_label": label}
            created = await client.responses.create(model=MODEL, input=turns(*script), tools=[mcp], background=True)
            return created.id

        inside = {}
        for label in ("tests", "careful"):
            calls = call(f"{label}__echo", text=f"first-{label}"), call(f"{label}__slow", text=f"inside-{label}")
            inside[label] = await begun(label, *calls, "So: {results}")
            await until(lambda label=label: tools.count(f"begun slow inside-{label}"))
        second = f"{long}{call('tests__echo', text='after')}"  # It takes seconds to write.
        between = await begun("tests", call("tests__echo", text="between"), second, "So: {results}")

        async def writing() -> bool:
            return len((await client.responses.retrieve(between)).output_text) > 100

        await until(writing)
        send_all(pair.named(["celeryd"]), signal.SIGKILL)
        for label in inside:
            tools.release(f"inside-{label}")
        again, failed = [await final(client, each) for each in inside.values()]
        response = await final(client, between)
    assert [tools.count(f"begun echo first-{label}") for label in inside] == [1, 1]
    assert (again.status, again.output_text, tools.count("begun slow inside-tests")) == (
        "completed", "So: slow inside-tests", 2
    )  # fmt: skip
    assert (failed.status, failed.output[2].status, tools.count("begun slow inside-careful")) == (
        "completed", "failed", 1
    )  # fmt: skip
    assert response.output_text == f"{long}So: echo after"
    assert (tools.count("begun echo between"), tools.count("begun echo after")) == (1, 1)


def test_a_server_that_is_added_to_the_models_file_runs_calls_without_a_restart(
    pair: Longhaul, client: OpenAI, tools: ToolProcess
) -> None:
    models = pair.home.parent / "models.toml"
    before = models.read_text()
    late: Any = {**NEVER, "server_label": "late"}
    said = turns(call("late__echo", text="here"), "It said: {results}")

    def answer() -> str | None:
        """None while the API, or the worker, has not looked yet."""
        with pair.http() as http:
            answer = http.post("/v1/responses", json={"model": MODEL, "input": said, "tools": [late]})
        done = answer.status_code == 200 and answer.json()["status"] == "completed"
        return answer.json()["output"][-1]["content"][0]["text"] if done else None

    try:
        models.write_text(f'{before}\n[[tool_servers]]\nlabel = "late"\nurl = "{tools.url}?late"\n')
        assert until_sync(lambda: answer() == "It said: echo here", what=pair.tail, pause=0.2)
    finally:
        models.write_text(before)
