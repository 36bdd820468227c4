"""openai-agents: whole runs, over HTTP, over its WebSocket transport, and by chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    ReasoningItem,
    RunConfig,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    ShellTool,
    SQLiteSession,
    ToolCallItem,
    ToolSearchTool,
    function_tool,
    tool_namespace,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall
from openai.types.shared import Reasoning

from tests.clients.target import ON_BOTH_ENGINES, PARIS, REPORT, THINKING, City, Target
from tests.support.longhaul import Longhaul
from tests.support.tool_servers import call, turns

PLAIN = RunConfig(tracing_disabled=True)


@pytest.fixture(params=["http", "websocket"])
async def model(request: pytest.FixtureRequest, async_client: AsyncOpenAI, target: Target) -> AsyncIterator[Model]:
    if request.param == "http":
        yield OpenAIResponsesModel(target.model, async_client)
        return
    opened = OpenAIResponsesWSModel(target.model, async_client)
    yield opened
    await opened.close()


@function_tool
def get_weather(city: str) -> str:
    """Current weather of a city."""
    assert city == "Paris"
    return REPORT


def agent(model: Model, **more: Any) -> Agent[None]:
    return Agent(name="Assistant", model=model, **more)


async def test_run(model: Model, target: Target) -> None:
    result = await Runner.run(agent(model), target.script.hello, run_config=PLAIN)
    assert result.final_output == target.script.hello_answer
    assert result.raw_responses[0].usage.output_tokens > 0


async def test_run_streamed(model: Model, target: Target) -> None:
    result = Runner.run_streamed(agent(model), target.script.long, run_config=PLAIN)
    text = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text == result.final_output == target.script.long_answer


@ON_BOTH_ENGINES
async def test_a_function_tool_is_called_in_a_loop(model: Model, target: Target) -> None:
    result = await Runner.run(agent(model, tools=[get_weather]), target.script.weather, run_config=PLAIN)
    assert result.final_output == target.script.weather_answer
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]


async def test_a_function_tool_is_called_in_a_streamed_loop(model: Model, target: Target) -> None:
    result = Runner.run_streamed(agent(model, tools=[get_weather]), target.script.weather, run_config=PLAIN)
    seen = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    assert seen == ["tool_called", "tool_output", "message_output_created"]
    assert result.final_output == target.script.weather_answer


async def test_previous_response_id_carries_the_history(model: Model, target: Target) -> None:
    first = await Runner.run(agent(model), target.script.name, run_config=PLAIN)
    assert first.final_output == target.script.name_answer
    second = await Runner.run(
        agent(model), target.script.asked, previous_response_id=first.last_response_id, run_config=PLAIN
    )
    assert second.final_output == target.script.asked_answer
    used = [result.raw_responses[0].usage for result in (first, second)]
    assert used[1].input_tokens > used[0].total_tokens


async def test_previous_response_id_carries_a_tool_loop(model: Model, target: Target) -> None:
    result = await Runner.run(
        agent(model, tools=[get_weather]), target.script.weather, auto_previous_response_id=True, run_config=PLAIN
    )
    assert result.final_output == target.script.weather_answer


async def test_a_conversation_carries_the_history(model: Model, async_client: AsyncOpenAI, target: Target) -> None:
    conversation = await async_client.conversations.create()
    for said, answer in (
        (target.script.name, target.script.name_answer),
        (target.script.asked, target.script.asked_answer),
    ):
        result = await Runner.run(agent(model), said, conversation_id=conversation.id, run_config=PLAIN)
        assert result.final_output == answer


async def test_a_session_sends_the_history(model: Model, target: Target) -> None:
    session = SQLiteSession("talk")
    try:
        await Runner.run(agent(model), target.script.name, session=session, run_config=PLAIN)
        result = await Runner.run(agent(model), target.script.asked, session=session, run_config=PLAIN)
    finally:
        session.close()
    assert result.final_output == target.script.asked_answer


@ON_BOTH_ENGINES
async def test_an_output_type_is_a_structured_output(model: Model, target: Target) -> None:
    result = await Runner.run(agent(model, output_type=City), target.script.paris, run_config=PLAIN)
    assert result.final_output == PARIS


@ON_BOTH_ENGINES
async def test_settings_are_honoured(model: Model, target: Target) -> None:
    settings = ModelSettings(temperature=0.0, max_tokens=300, store=False, metadata={"a": "b"}, verbosity=None)
    result = await Runner.run(agent(model, model_settings=settings), target.script.hello, run_config=PLAIN)
    assert result.final_output == target.script.hello_answer


@ON_BOTH_ENGINES
async def test_reasoning_is_shown(model: Model, target: Target) -> None:
    settings = ModelSettings(reasoning=Reasoning(**THINKING))
    result = Runner.run_streamed(agent(model, model_settings=settings), target.script.hello, run_config=PLAIN)
    shown = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.reasoning_summary_text.delta":
            shown += event.data.delta
    thought, _ = result.new_items
    assert isinstance(thought, ReasoningItem)
    assert [part.text for part in thought.raw_item.summary] == [shown] == [target.script.hello_thought]


async def test_tools_of_a_namespace_are_called(scripted: Longhaul) -> None:
    tools = tool_namespace(name="weather", description="All about the weather.", tools=[get_weather])
    said = '/raw <tool_call>{"name": "weather__get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    async with scripted.async_client() as client:
        model = OpenAIResponsesModel("scripted", client)
        result = await Runner.run(agent(model, tools=tools), said, run_config=PLAIN)
    called = result.new_items[0]
    assert isinstance(called, ToolCallItem)
    assert isinstance(called.raw_item, ResponseFunctionToolCall)
    assert (called.raw_item.namespace, called.raw_item.name) == ("weather", "get_weather")
    assert result.final_output == f"The tool said: {REPORT}"


async def test_a_context_beyond_the_threshold_is_compacted(scripted: Longhaul) -> None:
    settings = ModelSettings(context_management=[{"type": "compaction", "compact_threshold": 1000}])
    said: Any = [
        {"role": "user", "content": "/repeat 1500 a"},
        {"role": "assistant", "content": "a" * 1500},
        {"role": "user", "content": "Hello!"},
    ]
    async with scripted.async_client() as client:
        model = OpenAIResponsesModel("scripted", client)
        result = await Runner.run(agent(model, model_settings=settings), said, run_config=PLAIN)
        again: Any = [*result.to_input_list(), {"role": "user", "content": "Bye!"}]
        continued = await Runner.run(agent(model, model_settings=settings), again, run_config=PLAIN)
    assert [item.type for item in result.raw_responses[0].output] == ["compaction", "message"]
    assert continued.final_output == "You said: Bye!"


async def said(scripted: Longhaul, *script: str, **more: Any) -> Any:
    """A run in which the model says these turns."""
    async with scripted.async_client() as client:
        model = OpenAIResponsesModel("scripted", client)
        return await Runner.run(agent(model, **more), turns(*script), run_config=PLAIN)


async def test_a_shell_runs_the_commands_of_the_model(scripted: Longhaul) -> None:
    ran: list[list[str]] = []

    def run(request: ShellCommandRequest) -> ShellResult:
        ran.append(request.data.action.commands)
        return ShellResult([ShellCommandOutput(stdout="a.py", outcome=ShellCallOutcome("exit", 0))])

    script = (call("run_shell_commands", commands=["ls"]), "Listed: {results}")
    result = await said(scripted, *script, tools=[ShellTool(run)])
    assert ran == [["ls"]]
    assert result.final_output == "Listed: a.py\nExit code: 0"


async def test_an_editor_applies_the_patches_of_the_model(scripted: Longhaul) -> None:
    edits: list[tuple[str, str, str | None]] = []

    class Editor:
        def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
            edits.append((operation.type, operation.path, operation.diff))
            return ApplyPatchResult(output="Created.")

        update_file = delete_file = create_file

    script = (call("apply_file_patch", type="create_file", path="a.py", diff="+x"), "Said: {results}")
    result = await said(scripted, *script, tools=[ApplyPatchTool(Editor())])
    assert edits == [("create_file", "a.py", "+x")]
    assert result.final_output == "Said: Created."


async def test_a_local_shell_runs_the_command_of_the_model(scripted: Longhaul) -> None:
    script = (call("run_local_command", command=["ls", "-l"]), "Listed: {results}")
    shell = LocalShellTool(lambda request: " ".join(request.data.action.command))
    result = await said(scripted, *script, tools=[shell])
    assert result.final_output == "Listed: ls -l"


async def test_a_tool_that_loads_later_is_found_by_the_server(scripted: Longhaul) -> None:
    late = function_tool(get_weather_of, defer_loading=True)
    script = (call("tool_search", query="weather"), call("get_weather_of", city="Paris"), "Said: {results}")
    result = await said(scripted, *script, tools=[late, ToolSearchTool()])
    assert result.final_output.startswith("Said: ")
    assert REPORT in result.final_output
    kinds = [item.type for item in result.new_items]
    assert kinds[:3] == ["tool_search_call_item", "tool_search_output_item", "tool_call_item"]


def get_weather_of(city: str) -> str:
    """Current weather of a city."""
    assert city == "Paris"
    return REPORT


@pytest.fixture
def chat_model(async_client: AsyncOpenAI, target: Target) -> Model:
    return OpenAIChatCompletionsModel(target.model, async_client)


async def test_chat_completions_call_a_tool_in_a_streamed_loop(chat_model: Model, target: Target) -> None:
    result = Runner.run_streamed(agent(chat_model, tools=[get_weather]), target.script.weather, run_config=PLAIN)
    async for _ in result.stream_events():
        pass
    assert result.final_output == target.script.weather_answer


async def test_chat_completions_fill_a_model(chat_model: Model, target: Target) -> None:
    result = await Runner.run(agent(chat_model, output_type=City), target.script.paris, run_config=PLAIN)
    assert result.final_output == PARIS


async def test_chat_completions_show_reasoning(chat_model: Model, target: Target) -> None:
    settings = ModelSettings(reasoning=Reasoning(effort="medium"))
    result = await Runner.run(agent(chat_model, model_settings=settings), target.script.hello, run_config=PLAIN)
    (thought,) = [item for item in result.new_items if isinstance(item, ReasoningItem)]
    assert [part.text for part in thought.raw_item.summary] == [target.script.hello_thought]
    assert result.final_output == target.script.hello_answer
