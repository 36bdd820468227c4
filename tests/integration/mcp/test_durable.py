"""Hosted calls whose workers stop, are revoked, are taken for dead, or lose their engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.store.queue import workers as worker_store
from app.store.responses import endings
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.tools import McpServer
from tests.integration.mcp.cases import DONE
from tests.support.logs import events_of, plain, row_of, text_of, whole
from tests.support.python_server import python_server
from tests.support.requests import message
from tests.support.rows import queued, release_all, released
from tests.support.tool_servers import CODE_INTERPRETER, ToolProcess, call, mcp_tool, tool_sessions, turns
from tests.support.waiting import until
from tests.support.worker import stop_and_go, worker
from workers.generation.outcome import Cancelled, Outcome
from workers.generation.turns.tool_calls import INTERRUPTED
from workers.toolservers.python.tool import FRESH

Json = dict[str, Any]
IS_KNOWN = "print('x' in dir())"


async def asked(db: Database, *script: str, **request: Any) -> str:
    return await queued(db, **{"input": [message(turns(*script))], "tools": [mcp_tool()], **request})


async def kinds(db: Database, response_id: str) -> list[str]:
    return [event["type"] for event in await events_of(db, response_id)]


async def finish(db: Database, pubsub: PubSub, response_id: str, *servers: McpServer) -> ResponseRow:
    async with worker(db, pubsub, mcp_sessions=tool_sessions(servers)) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    return await whole(db, response_id)


def called(row: ResponseRow) -> list[Json]:
    return [item for item in row.output or () if item["type"].endswith("_call")]


# -- workers that stop in order --------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_crash", "times"), [("again", 2), (None, 1)])
async def test_after_crash_decides_about_a_call_that_runs_when_its_worker_stops(
    db: Database, pubsub: PubSub, tools: ToolProcess, after_crash: Any, times: int
) -> None:
    server, text = tools.server(after_crash=after_crash), f"stop-{after_crash}"
    response_id = await asked(db, call("tests__slow", text=text), DONE)
    async with worker(db, pubsub, mcp_sessions=tool_sessions((server,))) as first:
        job = first.start(response_id)
        await until(lambda: tools.count(f"begun slow {text}"))
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        await until(lambda: tools.count(f"cut slow {text}"))  # the server got the cancellation
        assert await released(db) == [response_id]
    tools.release(text)
    row = await finish(db, pubsub, response_id, server)
    [made] = called(row)
    assert tools.count(f"begun slow {text}") == times
    if after_crash == "again":
        assert text_of(row) == f"It said: slow {text}"
    else:
        assert (made["status"], text_of(row)) == ("failed", f"It said: {INTERRUPTED}")


REQUESTS: dict[str, tuple[Sequence[str], Json]] = {
    "one after the other, and parallel": (
        [
            f"<think>Hm.</think>Look: {call('tests__echo', text='é👋')}",
            call("tests__echo", text="a") + call("tests__refusing", text="b") + "Both.",
            DONE,
        ],
        {},
    ),
    "code": ([call("python", code="x = 'é'\nprint(x)"), DONE], {"tools": [CODE_INTERPRETER]}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_worker_that_stops_at_any_event_changes_nothing(
    db: Database, pubsub: PubSub, tools: ToolProcess, name: str
) -> None:
    script, request = REQUESTS[name]
    servers = (tools.server(after_crash="again"), tools.server("box", "python"))
    expected = plain(await finish(db, pubsub, await asked(db, *script, **request), *servers))
    response_id = await asked(db, *script, **request)
    assert await stop_and_go(db, pubsub, response_id, every=7, mcp_sessions=tool_sessions(servers)) > 1
    assert plain(await whole(db, response_id)) == expected


async def test_a_call_of_a_turn_that_was_cut_is_made_though_its_server_repeats_none(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    """The first call is complete, and nobody has made it: calls are made once their turn has ended."""
    script = (call("tests__echo", text="cut-1") + call("tests__echo", text="cut-2"), DONE)
    response_id = await asked(db, *script)
    server = tools.server(after_crash="fail")
    async with worker(db, pubsub, tokens_per_second=20.0, mcp_sessions=tool_sessions((server,))) as first:
        job = first.start(response_id)

        async def second_call_begins() -> bool:
            kinds = [event["type"] for event in await events_of(db, response_id)]
            return job.task.done() or "response.mcp_call_arguments.done" in kinds

        await until(second_call_begins)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    assert tools.count("begun echo cut-1") == 0
    row = await finish(db, pubsub, response_id, server)
    assert [item["output"] for item in row.output or () if item["type"] == "mcp_call"] == ["echo cut-1", "echo cut-2"]


async def test_the_model_is_told_that_names_are_lost_with_the_worker_that_held_the_session(
    db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    script = (
        call("python", code="x = 1"),
        f"{'Hm. ' * 20}{call('python', code=IS_KNOWN)}",
        call("python", code=IS_KNOWN),
    )
    response_id = await asked(db, *script, DONE, tools=[CODE_INTERPRETER], include=["code_interpreter_call.outputs"])
    with python_server(tmp_path / "python.log") as python:
        server = McpServer("python", "python", python.url)
        async with worker(db, pubsub, tokens_per_second=20.0, mcp_sessions=tool_sessions((server,))) as first:
            job = first.start(response_id)

            async def cell_has_run() -> bool:
                return job.task.done() or "response.code_interpreter_call.completed" in await kinds(db, response_id)

            await until(cell_has_run)
            assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        row = await finish(db, pubsub, response_id, server)
    printed = [item["outputs"][0]["logs"].strip() for item in called(row)[1:]]
    assert printed == [f"{FRESH}\nFalse", "False"]


# -- workers that died -----------------------------------------------------------------------------------------


async def test_a_worker_that_is_fenced_during_a_call_writes_nothing_more(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    response_id = await asked(db, call("tests__slow", text="taken"), DONE)
    server = tools.server(after_crash="fail")
    async with worker(db, pubsub, mcp_sessions=tool_sessions((server,))) as first:
        job = first.start(response_id)
        await until(lambda: tools.count("begun slow taken"))
        await release_all(db, first.lease.worker)  # as maintenance does
        row = await finish(db, pubsub, response_id, server)
        tools.release("taken")
        assert await job.task in (Outcome.COMPLETED, Outcome.FENCED)  # by the row
    assert text_of(row) == f"It said: {INTERRUPTED}"
    assert plain(await whole(db, response_id)) == plain(row)


async def test_an_engine_that_dies_between_calls_repeats_none(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    response_id = await asked(db, call("tests__echo", text="engine"), "/die 5")
    for _ in range(3):
        async with worker(db, pubsub, mcp_sessions=tool_sessions((tools.server(),))) as w:
            job = w.start(response_id)
            await asyncio.wait([job.task])
            assert w.engine_deaths == 1
    row = await row_of(db, response_id)
    assert row.status is Status.FAILED
    assert tools.count("begun echo engine") == 1
    assert tools.lines()[-1] == "closed"


async def test_a_server_that_does_not_end_its_session_holds_up_no_response(
    db: Database, pubsub: PubSub, broken_tools: ToolProcess
) -> None:
    response_id = await asked(db, call("tests__echo", text="x"), DONE)

    async def has_called() -> bool:
        return "response.mcp_call.completed" in await kinds(db, response_id)

    async with worker(db, pubsub, mcp_sessions=tool_sessions((broken_tools.server(),)), tokens_per_second=20.0) as w:
        job = w.start(response_id)
        await until(has_called)
        with broken_tools.frozen():
            assert await job.task is Outcome.COMPLETED
            assert list(w.mcp_sessions.closing), "it waits for its server yet"


async def test_tool_lists_and_approved_calls_are_taken_over_too(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    request = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "tests", "name": "slow"}
    answer = {"id": "mcpa_1", "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    asking = [message(turns("never", DONE)), {**request, "arguments": '{"text": "allowed"}'}, answer]
    response_id = await queued(db, input=asking, tools=[mcp_tool(require_approval="always")])
    async with worker(db, pubsub, mcp_sessions=tool_sessions((tools.server(after_crash="again"),))) as first:
        job = first.start(response_id)
        await until(lambda: tools.count("begun slow allowed"))
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    tools.release("allowed")
    row = await finish(db, pubsub, response_id, tools.server(after_crash="again"))
    assert [item["type"] for item in row.output or ()] == ["mcp_list_tools", "mcp_call", "message"]
    assert text_of(row) == "It said: slow allowed"
    assert tools.count("begun slow allowed") == 2


# -- cancellations and deadlines -------------------------------------------------------------------------------


async def test_a_revoke_cancels_the_call_and_closes_the_session(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    response_id = await asked(db, call("tests__slow", text="revoked"), DONE)
    async with worker(db, pubsub, mcp_sessions=tool_sessions((tools.server(),))) as w:
        job = w.start(response_id)
        await until(lambda: tools.count("begun slow revoked"))
        assert await job.stop(Cancelled.REVOKED) is Outcome.CANCELLED
        await until(lambda: tools.count("cut slow revoked"))
        await until(lambda: tools.lines()[-1] == "closed")
    row = await whole(db, response_id, Status.CANCELLED)
    assert called(row)[0]["status"] == "incomplete"


async def test_the_heartbeat_stops_a_call_whose_response_has_ended(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    response_id = await asked(db, call("tests__slow", text="late"), DONE)
    async with worker(db, pubsub, lease_seconds=0.3, mcp_sessions=tool_sessions((tools.server(),))) as w:
        job = w.start(response_id)
        await until(lambda: tools.count("begun slow late"))
        await endings.fail(db, response_id, "run_timeout", "it ran for longer than its run timeout")
        await asyncio.gather(job.task, return_exceptions=True)
        await until(lambda: tools.count("cut slow late"))
        assert w.runs.attempts() == {}
    await whole(db, response_id, Status.FAILED)


async def test_a_worker_stops_even_if_a_server_does_not_close_its_session(
    db: Database, pubsub: PubSub, tools: ToolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.mcp.session.CLOSE_SECONDS", 0.2)
    response_id = await asked(db, call("tests__slow", text="frozen"), DONE)
    async with worker(db, pubsub, mcp_sessions=tool_sessions((tools.server(),))) as w:
        job = w.start(response_id)
        await until(lambda: tools.count("begun slow frozen"))
        with tools.frozen():
            assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    assert (await row_of(db, response_id)).worker is None
    assert await worker_store.release_dead_workers(db) == []
