"""Calls that the server runs, as users see them: processes, real MCP servers, the openai package; and kill -9."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest
from agents import (
    Agent,
    HostedMCPTool,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
)
from openai import AsyncOpenAI, BadRequestError, OpenAI

from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.tool_servers import ToolProcess, call, tool_process, turns
from tests.support.waiting import until, until_sync

MODEL = "scripted"
MODELS = """
[[models]]
name = "scripted"
engine = "tests.support.scripted:ScriptedEngine"
tool_parser = "hermes"
reasoning_parser = "qwen3"
[models.engine_args]
tokens_per_second = 3000.0

[[tool_servers]]
label = "tests"
url = "{url}"
after_crash = "again"

[[tool_servers]]
label = "careful"
url = "{other}"
after_crash = "fail"

[[tool_servers]]
label = "python"
kind = "python"
url = "{third}"

[[tool_servers]]
label = "local"
command = {command}
"""
NEVER = {"type": "mcp", "server_label": "tests", "require_approval": "never"}
CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
LOCAL = {"type": "mcp", "server_label": "local", "require_approval": "never"}
SAID = turns(
    f"<think>Well.</think>Look: {call('tests__echo', text='é👋')}{call('python', code='1+1')}",
    call("local__echo", text="two"),
    "It said: {results}",
)
ASKED: dict[str, Any] = {"model": MODEL, "input": SAID, "tools": [NEVER, CODE, LOCAL]}
TYPES = ["mcp_list_tools", "mcp_list_tools", "reasoning", "message", "mcp_call", "code_interpreter_call", "mcp_call"]


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolProcess]:
    with open_folder() as folder, tool_process(folder) as server:
        folder.chmod(0o755)
        yield server


@pytest.fixture(scope="module")
def pair(tools: ToolProcess) -> Iterator[Longhaul]:
    """`longhaul up --workers 2` with tools."""
    with open_folder() as folder:
        urls = {"other": f"{tools.url}?other", "third": f"{tools.url}?third"}
        command = str(list(tools.command().command or ())).replace("'", '"')
        models = folder / "models.toml"
        models.write_text(MODELS.format(url=tools.url, command=command, **urls))
        with running(Longhaul(folder / "home", models, workers=2)) as installation:
            yield installation


def write_models(pair: Longhaul, text: str) -> None:
    (pair.home.parent / "models.toml").write_text(text)


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


# -- the four modes --------------------------------------------------------------------------------------------


def test_sync(client: OpenAI) -> None:
    check(client.responses.create(**ASKED))


def test_stream(client: OpenAI) -> None:
    with client.responses.stream(**ASKED) as stream:
        events = list(stream)
        check(stream.get_final_response())
    kinds = {event.type for event in events}
    assert {"response.mcp_call_arguments.delta", "response.code_interpreter_call_code.delta"} <= kinds
    assert "response.code_interpreter_call.interpreting" in kinds


def test_background(client: OpenAI) -> None:
    created = client.responses.create(**ASKED, background=True)
    final = until_sync(lambda: (r := client.responses.retrieve(created.id)).status == "completed" and r)
    check(final)


def test_resumed_at_every_event(client: OpenAI) -> None:
    with client.responses.create(**ASKED, background=True, stream=True) as stream:
        whole = [event.model_dump() for event in stream]
    response_id = whole[0]["response"]["id"]
    for after in range(len(whole)):
        with client.responses.retrieve(response_id, stream=True, starting_after=after) as rest:
            assert [event.model_dump() for event in rest] == whole[after + 1 :]
    check(client.responses.retrieve(response_id))


def test_approvals_and_chains(client: OpenAI, tools: ToolProcess) -> None:
    asking: dict[str, Any] = {"model": MODEL, "tools": [{"type": "mcp", "server_label": "tests"}]}
    said = turns(call("tests__echo", text="may-i"), "Thanks: {results}")
    first = client.responses.create(**asking, input=said)
    request = first.output[-1]
    assert (request.type, request.arguments) == ("mcp_approval_request", '{"text": "may-i"}')
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    second = client.responses.create(**asking, previous_response_id=first.id, input=[answer])
    assert [item.type for item in second.output] == ["mcp_call", "message"]
    assert second.output_text == "Thanks: echo may-i"
    assert tools.count("begun echo may-i") == 1


def test_a_server_that_is_not_allowed_is_refused(client: OpenAI) -> None:
    with pytest.raises(Exception, match=r"tools\[0\]\.server_url"):
        client.responses.create(**{**ASKED, "tools": [{**NEVER, "server_url": "http://169.254.169.254/mcp"}]})


def test_a_server_that_is_added_to_the_models_file_runs_calls_without_a_restart(
    pair: Longhaul, client: OpenAI, tools: ToolProcess
) -> None:
    before = (pair.home.parent / "models.toml").read_text()
    write_models(pair, f'{before}\n[[tool_servers]]\nlabel = "late"\nurl = "{tools.url}?late"\n')
    late: Any = [{"type": "mcp", "server_label": "late", "require_approval": "never"}]
    said = turns(call("late__echo", text="here"), "It said: {results}")

    def answer() -> str | None:
        """None while the API, or the worker, has not looked yet."""
        try:
            response = client.responses.create(model=MODEL, input=said, tools=late)
        except BadRequestError:
            return None
        return response.output_text if response.status == "completed" else None

    try:
        assert until_sync(lambda: answer() == "It said: echo here", what=pair.tail, pause=0.2)
    finally:
        write_models(pair, before)


# -- openai-agents ---------------------------------------------------------------------------------------------


def hosted(mcp: dict[str, Any], **more: Any) -> Agent[None]:
    return Agent(name="Assistant", tools=[HostedMCPTool(tool_config=mcp, **more)])  # type: ignore[arg-type]


@pytest.fixture
async def agents(pair: Longhaul) -> AsyncIterator[RunConfig]:
    async with pair.async_client() as opened:
        yield RunConfig(tracing_disabled=True, model=OpenAIResponsesModel(MODEL, opened))


async def test_an_agent_uses_a_hosted_mcp_tool(agents: RunConfig) -> None:
    said = turns(call("tests__echo", text="agent"), "It said: {results}")
    result = await Runner.run(hosted(NEVER), said, run_config=agents)
    assert result.final_output == "It said: echo agent"
    again = Runner.run_streamed(hosted(NEVER), said, run_config=agents)
    kinds = {event.data.type async for event in again.stream_events() if event.type == "raw_response_event"}
    assert again.final_output == result.final_output
    assert {"response.mcp_list_tools.completed", "response.mcp_call.completed"} <= kinds


@pytest.mark.parametrize("approve", [True, False])
async def test_an_agent_is_asked_for_approval(agents: RunConfig, tools: ToolProcess, approve: bool) -> None:
    text, asked = f"agent-{approve}", []

    def decide(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        asked.append(request.data.arguments)
        return {"approve": approve}

    said = turns(call("tests__echo", text=text), "Thanks: {results}")
    mcp = {"type": "mcp", "server_label": "tests"}
    result = await Runner.run(hosted(mcp, on_approval_request=decide), said, run_config=agents)
    assert asked == [f'{{"text": "{text}"}}']
    assert tools.count(f"begun echo {text}") == int(approve)
    assert (result.final_output == f"Thanks: echo {text}") is approve


# -- kill -9 ---------------------------------------------------------------------------------------------------


def worker_of(pair: Longhaul, response_id: str) -> psutil.Process:
    """The worker that runs it: the only one with a session at the tool server."""
    for process in pair.named(["celeryd"]):
        if any(c.raddr and c.raddr.port in tool_ports(pair) for c in process.net_connections("tcp")):
            return process
    raise AssertionError(f"nobody runs {response_id}")


def tool_ports(pair: Longhaul) -> set[int]:
    text = (pair.home.parent / "models.toml").read_text()
    return {int(line.split(":")[2].split("/")[0]) for line in text.splitlines() if line.startswith("url")}


async def final(client: AsyncOpenAI, response_id: str) -> Any:
    async def ended() -> Any:
        response = await client.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return await until(ended, what=f"{response_id} is final")


@pytest.mark.parametrize("label", ["tests", "careful"])
async def test_kill_9_inside_a_call(pair: Longhaul, tools: ToolProcess, label: str) -> None:
    text = f"inside-{label}"
    said = turns(call(f"{label}__echo", text=f"first-{label}"), call(f"{label}__slow", text=text), "So: {results}")
    mcp = {"type": "mcp", "server_label": label, "require_approval": "never"}
    async with pair.async_client() as client:
        created = await client.responses.create(model=MODEL, input=said, tools=[mcp], background=True)  # type: ignore[list-item]
        await until(lambda: tools.count(f"begun slow {text}"))
        worker_of(pair, created.id).send_signal(signal.SIGKILL)
        tools.release(text)
        response = await final(client, created.id)
    assert response.status == "completed"
    assert tools.count(f"begun echo first-{label}") == 1  # what was over is not repeated
    if label == "tests":
        assert response.output_text == f"So: slow {text}"
        assert tools.count(f"begun slow {text}") == 2
    else:
        assert response.output[2].status == "failed"
        assert tools.count(f"begun slow {text}") == 1


async def test_kill_9_between_two_calls(pair: Longhaul, tools: ToolProcess) -> None:
    # The second turn takes seconds to write: the worker dies in the middle of it, with one call behind it.
    long = "x" * 9000
    said = turns(call("tests__echo", text="between"), f"{long}{call('tests__echo', text='after')}", "So: {results}")
    async with pair.async_client() as client:
        created = await client.responses.create(model=MODEL, input=said, tools=[NEVER], background=True)  # type: ignore[list-item]

        async def writing() -> bool:
            return len((await client.responses.retrieve(created.id)).output_text) > 100

        await until(writing)
        worker_of(pair, created.id).send_signal(signal.SIGKILL)
        response = await final(client, created.id)
    assert response.output_text == f"{long}So: echo after"
    assert (tools.count("begun echo between"), tools.count("begun echo after")) == (1, 1)
