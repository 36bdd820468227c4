"""The MCP servers that come with Longhaul, behind a whole worker: a session with state, pages and citations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.aio import BackgroundTasks
from app.local.ports import free_port
from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.tools import McpServer
from tests.integration.mcp.cases import answer
from tests.support.browser_server import browser_server
from tests.support.logs import text_of
from tests.support.python_server import python_server
from tests.support.tool_servers import CODE_INTERPRETER, WEB_SEARCH, call
from workers.formats.calls.hosted import HostedCall
from workers.mcp.results import ResultOptions
from workers.mcp.toolbox import Toolbox
from workers.toolservers.python.tool import FRESH

Json = dict[str, Any]
CELL = HostedCall("python", "", "python", None, "python")
PAGE = "<html><head><title>Tall</title></head><body><p>Everest is 8849 m high.</p></body></html>"


async def test_python_keeps_its_names_from_call_to_call_of_a_response_and_no_longer(
    db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    script = (call("python", code="x = 6 * 7"), call("python", code="print(f'x is {x}')"), "So {results}")
    request: Json = {"tools": [CODE_INTERPRETER], "include": ["code_interpreter_call.outputs"]}
    with python_server(tmp_path / "python.log") as python:
        server = McpServer("python", "python", python.url)
        row = await answer(db, pubsub, (server,), *script, **request)
        assert text_of(row).strip() == "So x is 42"
        _, printed, _ = row.output or []
        assert printed["outputs"][0]["logs"].strip() == "x is 42"
        row = await answer(db, pubsub, (server,), call("python", code="x"), "So {results}", **request)
        assert "NameError" in text_of(row)
        assert [item["status"] for item in row.output or ()] == ["completed", "completed"]


async def test_the_model_is_told_that_names_are_lost_with_the_python_server(tmp_path: Path) -> None:
    port, cells = str(free_port()), (["x = 1", "'x' in dir()"], ["'x' in dir()"] * 2)
    server = McpServer("python", "python", f"http://127.0.0.1:{port}/mcp")
    toolbox = Toolbox([server], [CODE_INTERPRETER], {}, ResultOptions(1000), BackgroundTasks())
    told = []
    for life, codes in enumerate(cells):
        with python_server(tmp_path / f"{life}.log", "--port", port):
            told += [(await toolbox.run(CELL, code)).result for code in codes]
    toolbox.close()
    assert told == ["", "True", f"{FRESH}\nFalse", "False"]


async def test_a_page_is_found_opened_and_cited(db: Database, pubsub: PubSub, tmp_path: Path) -> None:
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "tall.html").write_text(PAGE)
    script = (call("browser_search", query="everest"), call("browser_open", id=0), "It is 8849 m high【1†L1-L3】.")
    with browser_server(tmp_path / "browser.log", "--backend", "folder", "--folder", str(folder)) as browser:
        server = McpServer("browser", "browser", browser.url)
        row = await answer(db, pubsub, (server,), *script, tools=[WEB_SEARCH])
        for domains, found in ((["folder.test"], "completed"), (["example.com"], "failed")):
            asked = {**WEB_SEARCH, "filters": {"allowed_domains": domains}}
            limited = await answer(db, pubsub, (server,), call("browser_search", query="everest"), "So.", tools=[asked])
            assert [item["status"] for item in limited.output or ()] == [found, "completed"]
    search, opened, reply = row.output or []
    assert (search["action"]["type"], search["action"]["query"]) == ("search", "everest")
    assert opened["action"]["url"].endswith("tall.html")
    [cited] = reply["content"][0]["annotations"]
    assert cited["url"] == opened["action"]["url"]
