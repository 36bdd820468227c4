"""What openai-agents alone does: sessions and conversations, its own tools, tools that load later, compaction."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.target import REPORT, Target, get_weather
from tests.support.tool_servers import call, turns


@pytest.fixture
def agents(scripted_target: Target) -> Any:
    """The adapter. It imports the package, which takes a second."""
    from tests.clients.adapters.agents import Http

    return Http(scripted_target)


async def test_history_is_carried_by_a_session_and_by_a_conversation(agents: Any) -> None:
    from agents import SQLiteSession

    script, session = agents.target.script, SQLiteSession("talk")
    async with agents.target.installation.async_client() as client:
        conversation = await client.conversations.create()
    for run in ({"session": session}, {"conversation_id": conversation.id}, {"auto_previous_response_id": True}):
        await agents.run(script.name, run=run)
        result = await agents.run(script.asked, run=run)
        assert result.final_output == script.asked_answer
    session.close()


async def test_tools_of_a_namespace_are_called(agents: Any) -> None:
    from agents import tool_namespace

    from tests.clients.adapters.agents import WEATHER

    tools = tool_namespace(name="weather", description="All about the weather.", tools=[WEATHER])
    result = await agents.run(turns(call("weather__get_weather", city="Paris"), "Said: {results}"), tools=tools)
    called = result.new_items[0].raw_item
    assert (called.type, called.namespace, called.name) == ("function_call", "weather", "get_weather")
    assert result.final_output == f"Said: {REPORT}"


async def test_a_context_beyond_the_threshold_is_compacted(agents: Any) -> None:
    from agents import ModelSettings

    settings = ModelSettings(context_management=[{"type": "compaction", "compact_threshold": 1000}])
    said: Any = [
        {"role": "user", "content": "/repeat 1500 a"},
        {"role": "assistant", "content": "a" * 1500},
        {"role": "user", "content": "Hello!"},
    ]
    result = await agents.run(said, model_settings=settings)
    again: Any = [*result.to_input_list(), {"role": "user", "content": "Bye!"}]
    continued = await agents.run(again, model_settings=settings)
    assert [item.type for item in result.raw_responses[0].output] == ["compaction", "message"]
    assert continued.final_output == "You said: Bye!"


async def test_a_shell_an_editor_and_a_local_shell_run_what_the_model_wants(agents: Any) -> None:
    from agents import (
        ApplyPatchTool,
        LocalShellTool,
        ShellCallOutcome,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellResult,
        ShellTool,
    )
    from agents.editor import ApplyPatchOperation, ApplyPatchResult

    done: list[Any] = []

    def run(request: ShellCommandRequest) -> ShellResult:
        done.append(request.data.action.commands)
        return ShellResult([ShellCommandOutput(stdout="a.py", outcome=ShellCallOutcome("exit", 0))])

    class Editor:
        def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
            done.append((operation.type, operation.path, operation.diff))
            return ApplyPatchResult(output="Created.")

        update_file = delete_file = create_file

    local = LocalShellTool(lambda request: " ".join(request.data.action.command))
    for tool, wanted, output in (
        (ShellTool(run), call("run_shell_commands", commands=["ls"]), "a.py\nExit code: 0"),
        (ApplyPatchTool(Editor()), call("apply_file_patch", type="create_file", path="a.py", diff="+x"), "Created."),
        (local, call("run_local_command", command=["ls", "-l"]), "ls -l"),
    ):
        result = await agents.run(turns(wanted, "Said: {results}"), tools=[tool])
        assert result.final_output == f"Said: {output}"
    assert done == [["ls"], ("create_file", "a.py", "+x")]


async def test_a_tool_that_loads_later_is_found_by_the_server(agents: Any) -> None:
    from agents import ToolSearchTool, function_tool

    late = function_tool(get_weather, defer_loading=True)
    script = (call("tool_search", query="weather"), call("get_weather", city="Paris"), "Said: {results}")
    result = await agents.run(turns(*script), tools=[late, ToolSearchTool()])
    assert result.final_output.startswith("Said: ")
    assert REPORT in result.final_output
    kinds = [item.type for item in result.new_items]
    assert kinds[:3] == ["tool_search_call_item", "tool_search_output_item", "tool_call_item"]
