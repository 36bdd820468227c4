"""Calls of unknown tools: the model gets an error, through a whole worker."""

from __future__ import annotations

import pytest

from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.integration.mcp.cases import DONE, FUNCTION, answer
from tests.support.logs import items, text_of, types
from tests.support.scripted.harmony import Harmony, said_in_harmony
from tests.support.tool_servers import ToolProcess, call, mcp_tool
from workers.generation.turns.tool_calls import NO_SUCH_TOOL, TOO_MANY
from workers.generation.turns.turn_loop import MAX_IDLE_TURNS

FINAL = "<|channel|>final<|message|>Well, then.<|return|>"


def no_such_tool(name: str) -> str:
    return NO_SUCH_TOOL.format(name=name)


HEADER = "<|channel|>{channel} to={name} code<|message|>"


@pytest.mark.parametrize(
    ("name", "channel", "label", "tool"),
    [
        ("functions.theirs", "commentary", "functions", "theirs"),
        ("python", "analysis", "python", "python"),
        ("container.exec", "analysis", "container", "exec"),
    ],
)
async def test_a_harmony_model_reads_of_a_missing_tool_in_the_call_s_channel_and_goes_on(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch, name: str, channel: str, label: str, tool: str
) -> None:
    turn = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HEADER.format(channel=channel, name=name)}1+1"
    engine = Harmony(f"{turn}<|call|>", FINAL)
    row = await said_in_harmony(db, pubsub, engine, monkeypatch, tools=[FUNCTION])
    assert types(row) == ["reasoning", "mcp_call", "message"]
    made = items(row)[1]
    assert (made["server_label"], made["name"], made["arguments"]) == (label, tool, "1+1")
    assert (made["status"], made["output"], made["error"]["message"]) == ("failed", None, no_such_tool(name))
    assert text_of(row) == "Hm.Well, then."
    first, second = engine.prompts
    result = f"<|start|>{name} to=assistant<|channel|>{channel}<|message|>{no_such_tool(name)}<|end|><|start|>assistant"
    assert second == f"{first}{turn}<|call|>{result}"


async def test_a_model_that_calls_only_unknown_tools_ends_its_response(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Harmony(HEADER.format(channel="analysis", name="python") + "1<|call|>")
    row = await said_in_harmony(db, pubsub, engine, monkeypatch)
    assert types(row) == ["mcp_call"] * MAX_IDLE_TURNS + ["message"]
    *calls, message = items(row)
    assert {call["status"] for call in calls} == {"failed"}
    assert [part["text"] for part in message["content"]] == [""]


async def test_max_tool_calls_counts_calls_of_unknown_tools(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Harmony(HEADER.format(channel="analysis", name="python") + "1<|call|>")
    row = await said_in_harmony(db, pubsub, engine, monkeypatch, max_tool_calls=1)
    *calls, _ = items(row)
    assert [call["error"]["message"] for call in calls] == [no_such_tool("python"), TOO_MANY, TOO_MANY]


async def test_a_clients_call_beside_an_unknown_one_ends_the_response(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = [f"{HEADER.format(channel='commentary', name=f'functions.{name}')}{{}}" for name in ("theirs", "mine")]
    engine = Harmony("<|end|><|start|>assistant".join(turn) + "<|call|>", FINAL)
    row = await said_in_harmony(db, pubsub, engine, monkeypatch, tools=[FUNCTION])
    assert types(row) == ["mcp_call", "function_call"]
    assert len(engine.prompts) == 1


async def test_a_chat_model_is_told_of_unknown_tools_if_the_request_has_hosted_tools(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    turn = call("tests__burn", a=1) + call("rm") + call("tests__echo", text="x")
    row = await answer(db, pubsub, (tools.server(),), turn, DONE, tools=[mcp_tool()])
    assert [item["status"] for item in items(row, "mcp_call")] == ["failed", "failed", "completed"]
    assert text_of(row) == f"It said: {no_such_tool('tests__burn')}; {no_such_tool('rm')}; echo x"
    assert tools.count("begun burn ") == 0
