"""Which session a call takes, when it is closed, and what the operator allows of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from app.aio import BackgroundTasks
from app.heavy import PROJECT
from config.server_kind import PROJECT_META
from config.tools import McpServer
from tests.support.waiting import until
from workers.formats.calls.hosted import HostedCall
from workers.mcp import toolbox as module
from workers.mcp.errors import SessionGone
from workers.mcp.results import ResultOptions
from workers.mcp.session import Session
from workers.mcp.toolbox import Toolbox

SERVER = McpServer("docs", "mcp", "http://127.0.0.1:1/mcp", allowed_tools=frozenset({"read"}))
SPEC = {"type": "mcp", "server_label": "docs", "allowed_tools": None}


class Listing:
    """A session that lists two tools, and may not be called."""

    closed = False

    async def close(self) -> None:
        """Nothing is open."""

    async def list_tools(self) -> list[str]:
        return ["read", "delete"]

    async def call(self, tool: str, arguments: object, _: Any = None) -> None:
        raise AssertionError(f"{tool} was called")


@pytest.fixture
def toolbox(monkeypatch: pytest.MonkeyPatch) -> Toolbox:
    monkeypatch.setattr(module, "Session", lambda *_, **__: Listing())
    monkeypatch.setattr(module, "tool_list", lambda names: [{"name": name} for name in names])
    return Toolbox([SERVER], [SPEC], {}, ResultOptions(1000), BackgroundTasks())


async def test_a_tool_that_the_operator_does_not_allow_is_not_listed(toolbox: Toolbox) -> None:
    assert await toolbox.list_tools("docs") == [{"name": "read"}]


async def test_a_tool_that_only_a_made_up_list_has_is_not_called(toolbox: Toolbox) -> None:
    result = await toolbox.run(HostedCall("docs__delete", "{}", "mcp", "docs", "delete"), None)
    assert "has no tool 'delete'" in str(result)


class FakeSession:
    """A session whose calls end when the test says so."""

    def __init__(self, server: McpServer, headers: Mapping[str, str], renewed: bool) -> None:
        self.server = server
        self.renewed = renewed
        self.headers = headers
        self.closed = False
        self.calls: list[tuple[str, dict[str, Any], asyncio.Future[types.CallToolResult]]] = []

    async def call(self, tool: str, arguments: dict[str, Any], _: Any = None) -> types.CallToolResult:
        answer: asyncio.Future[types.CallToolResult] = asyncio.get_running_loop().create_future()
        self.calls.append((tool, arguments, answer))
        return await answer

    def answer(self, index: int = 0) -> None:
        self.calls[index][2].set_result(types.CallToolResult(content=[types.TextContent(type="text", text="done")]))

    def fail(self, index: int, error: Exception | None = None) -> None:
        self.calls[index][2].set_exception(error or MCPError(types.CONNECTION_CLOSED, "gone"))

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    """The sessions that toolboxes open, in their order."""
    opened: list[FakeSession] = []

    def session(server: McpServer, headers: Mapping[str, str], *, renewed: bool) -> FakeSession:
        opened.append(FakeSession(server, headers, renewed))
        return opened[-1]

    monkeypatch.setattr(module, "Session", session)
    return opened


CODE = HostedCall("python", "1 + 1", "python", None, "python")


def call_of(label: str) -> HostedCall:
    return HostedCall(f"{label}__read", "{}", "mcp", label, "read")


async def test_code_goes_to_the_sandbox_even_if_an_mcp_server_of_the_request_is_called_python(
    sessions: list[FakeSession],
) -> None:
    sandbox, other = (
        McpServer("sandbox", "python", "http://127.0.0.1:1/mcp"),
        McpServer("python", "mcp", "http://o/mcp"),
    )
    spec = {**SPEC, "server_label": "python"}
    toolbox = Toolbox(
        [sandbox, other], [spec, {"type": "code_interpreter"}], {}, ResultOptions(1000), BackgroundTasks()
    )
    running = [asyncio.create_task(toolbox.run(call, code)) for call, code in [(call_of("python"), None), (CODE, "1")]]
    await until(lambda: sum(len(session.calls) for session in sessions) == 2)
    assert [(session.server.label, session.calls[0][0]) for session in sessions] == [
        ("python", "read"),
        ("sandbox", "python"),
    ]
    for session in sessions:
        session.answer()
    assert [(await result).ok for result in running] == [True, True]


async def test_the_headers_of_one_label_are_sent_for_no_other_tool(sessions: list[FakeSession]) -> None:
    server = McpServer("sandbox", "python", "http://127.0.0.1:1/mcp", request_headers=True)
    specs = [{**SPEC, "server_label": label, "server_url": server.url} for label in ("python", "again", "open")]
    secrets = {"python": {"X-Key": "one"}, "again": {"X-Key": "two"}}
    toolbox = Toolbox([server], [*specs, {"type": "code_interpreter"}], secrets, ResultOptions(1000), BackgroundTasks())
    calls = [(call_of("python"), None), (call_of("again"), None), (call_of("open"), None), (CODE, "1")]
    running = [asyncio.create_task(toolbox.run(call, code)) for call, code in calls]
    await until(lambda: sum(len(session.calls) for session in sessions) == 4)
    assert [(dict(session.headers), [tool for tool, _, _ in session.calls]) for session in sessions] == [
        ({"X-Key": "one"}, ["read"]),
        ({"X-Key": "two"}, ["read"]),
        ({}, ["read", "python"]),
    ]
    for session in sessions:
        for index in range(len(session.calls)):
            session.answer(index)
    assert all([(await result).ok for result in running])


async def test_a_late_failure_of_an_old_session_leaves_the_new_one_open(sessions: list[FakeSession]) -> None:
    toolbox = Toolbox([SERVER], [SPEC], {}, ResultOptions(1000), BackgroundTasks())
    first, second = (asyncio.create_task(toolbox.run(call_of("docs"), None)) for _ in range(2))
    await until(lambda: len(sessions) == 1 and len(sessions[0].calls) == 2)
    sessions[0].fail(0)
    assert not (await first).ok
    third = asyncio.create_task(toolbox.run(call_of("docs"), None))
    await until(lambda: len(sessions) == 2 and len(sessions[1].calls) == 1)
    sessions[0].fail(1)
    assert not (await second).ok
    sessions[1].answer()
    assert (await third).ok
    assert [session.closed for session in sessions] == [True, False]
    toolbox.close()
    await until(lambda: sessions[1].closed)


async def test_a_request_that_is_invalid_ends_no_session(sessions: list[FakeSession]) -> None:
    toolbox = Toolbox([SERVER], [SPEC], {}, ResultOptions(1000), BackgroundTasks())
    running = [asyncio.create_task(toolbox.run(call_of("docs"), None)) for _ in range(8)]
    await until(lambda: len(sessions) == 1 and len(sessions[0].calls) == 8)
    sessions[0].fail(3, MCPError(types.INVALID_REQUEST, "no such thing"))
    assert "refused: no such thing" in str(await running[3])
    last = asyncio.create_task(toolbox.run(call_of("docs"), None))
    await until(lambda: len(sessions[0].calls) == 9)
    assert not sessions[0].closed
    for index in (0, 1, 2, 4, 5, 6, 7, 8):
        sessions[0].answer(index)
    assert [(await call).ok for call in (*running, last)].count(False) == 1
    assert len(sessions) == 1


async def test_calls_that_a_server_has_forgotten_are_made_once_more_in_one_new_session(
    sessions: list[FakeSession],
) -> None:
    toolbox = Toolbox([SERVER], [SPEC], {}, ResultOptions(1000), BackgroundTasks())
    running = [asyncio.create_task(toolbox.run(call_of("docs"), None)) for _ in range(3)]
    await until(lambda: len(sessions) == 1 and len(sessions[0].calls) == 3)
    for index in (0, 1):
        sessions[0].fail(index, SessionGone())
    await until(lambda: len(sessions) == 2 and len(sessions[1].calls) == 2)
    assert not sessions[0].closed  # one of its calls still runs
    sessions[0].answer(2)
    sessions[1].answer(0)
    sessions[1].fail(1, SessionGone())
    assert [(await call).ok for call in running] == [True, False, True]
    await until(lambda: all(session.closed for session in sessions))


async def test_a_session_is_renewed_if_an_earlier_one_answered_a_call(sessions: list[FakeSession]) -> None:
    sandbox = McpServer("sandbox", "python", "http://127.0.0.1:1/mcp")
    toolbox = Toolbox([sandbox], [{"type": "code_interpreter"}], {}, ResultOptions(1000), BackgroundTasks())
    for ends in (["dies"], ["answers", "dies"], ["dies"], ["answers"]):
        for end in ends:
            running = asyncio.create_task(toolbox.run(CODE, "1"))
            await until(lambda: sessions and not sessions[-1].closed and not sessions[-1].calls[-1][2].done())
            if end == "answers":
                sessions[-1].answer(-1)
            else:
                sessions[-1].fail(-1)
            assert (await running).ok is (end == "answers")
    assert [session.renewed for session in sessions] == [False, False, True, True]


@pytest.mark.parametrize(
    ("after_crash", "kind", "annotations", "expected"),
    [
        (None, "mcp", None, False),
        (None, "mcp", {"readOnlyHint": False, "destructiveHint": True}, False),
        (None, "mcp", {"readOnlyHint": True}, True),
        (None, "mcp", {"idempotentHint": True}, True),
        (None, "python", None, True),
        ("fail", "mcp", {"readOnlyHint": True}, False),
        ("fail", "python", None, False),
        ("again", "mcp", None, True),
    ],
)
async def test_calls_are_repeated_unasked_only_if_that_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, after_crash: Any, kind: Any, annotations: Any, expected: bool
) -> None:
    server = McpServer("docs", kind, "http://127.0.0.1:1/mcp", after_crash=after_crash)
    monkeypatch.setattr(module, "Session", lambda *_, **__: Listing())
    listed = [{"name": "delete", "annotations": {"readOnlyHint": True}}, {"name": "read", "annotations": annotations}]
    monkeypatch.setattr(module, "tool_list", lambda _: listed)
    toolbox = Toolbox([server], [SPEC, {"type": "code_interpreter"}], {}, ResultOptions(1000), BackgroundTasks())
    assert await toolbox.may_repeat(CODE if kind == "python" else call_of("docs")) is expected


class RecordingSession(Session):
    """A session that keeps what it would send."""

    def __init__(self, kind: Any) -> None:
        self._server = McpServer("s", kind, "http://127.0.0.1:1/mcp")
        self._renewed = False
        self.sent: list[Any] = []

    async def _connected_client(self) -> Any:
        return SimpleNamespace(session=self)

    async def send_request(self, request: Any, _: Any) -> Any:
        self.sent.append(request.model_dump(by_alias=True, exclude_none=True)["params"])
        return types.CallToolResult(content=[])


@pytest.mark.parametrize("kind", ["mcp", "python"])
async def test_built_in_servers_alone_learn_which_calls_are_of_one_project(kind: Any) -> None:
    sent = []
    for project in ("proj_1", "proj_2", "proj_1", None):
        PROJECT.set(project)
        await (session := RecordingSession(kind)).call("run", {"code": "1"})
        sent += [call.get("_meta", {}).get(PROJECT_META) for call in session.sent]
    if kind == "mcp":
        assert sent == [None] * 4
    else:
        assert sent[0] == sent[2] != sent[1] and sent[3] is None
        assert "proj_1" not in sent[0]
