"""`longhaul tools browser`: a real server process, real MCP sessions, a folder of HTML files behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from openai_harmony import ToolNamespaceConfig

from tests.support.browser_server import BrowserServer, browser_server, call, refusal
from tests.support.waiting import PATIENCE_SECONDS, until

MOUNTAINS = """<!doctype html><title>Tallest mountains</title><h1>Tallest mountains</h1>
<p>Mount Everest is <b>8849</b> metres high, says <a href="https://survey.example/e#top">the survey</a>.</p>
<p>More about <a href="rivers/long.html">rivers</a>.</p>"""
RIVERS = "<title>Longest rivers</title>" + "".join(
    f"<p>River number {number} flows on and on.</p>" for number in range(300)
)
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web") / "pages"
    (folder / "rivers").mkdir(parents=True)
    (folder / "mountains.html").write_text(MOUNTAINS)
    (folder / "rivers" / "long.html").write_text(RIVERS)
    (folder / "notes.txt").write_text("Plain notes about volcanoes.\n")
    (folder / ".hidden.html").write_text("<p>volcanoes, hidden")
    (folder.parent / "outside.html").write_text("<p>volcanoes, outside")
    (folder / "link.html").symlink_to(folder.parent / "outside.html")
    return folder


@pytest.fixture(scope="module")
def server(web: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserServer]:
    log = tmp_path_factory.mktemp("browser") / "log"
    with browser_server(log, "--backend", "folder", "--folder", str(web)) as running:
        yield running


async def test_tool_definitions_equal_harmony_s(server: BrowserServer) -> None:
    expected = ToolNamespaceConfig.browser()
    async with Client(server.url) as client:
        listed = (await client.list_tools()).tools
        assert client.instructions == expected.description
    assert [(tool.name, tool.description, tool.input_schema) for tool in listed] == [
        (tool.name, tool.description, tool.parameters) for tool in expected.tools
    ]


async def test_a_search_is_shown_in_gpt_oss_s_format_with_facts(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        found = await call(client, "search", query="Everest", topn=3)
    assert found.text == (
        "[0] Everest\n"
        "**viewing lines [0 - 5] of 5**\n"
        "\n"
        "L0: \n"
        "L1: URL: \n"
        "L2: # Search Results\n"
        "L3: \n"
        "L4:   * 【0†Tallest mountains†folder.test】 # Tallest mountains Mount Everest is 8849 \n"
        "L5: metres high, says the survey. More about rivers."
    )
    url = "https://folder.test/mountains.html"
    assert found.facts == {
        "cursor": 0,
        "url": "",
        "title": "Everest",
        "lines": [0, 5],
        "action": {"type": "search", "query": "Everest", "sources": [{"type": "url", "url": url}]},
        "results": [{"url": url, "title": "Tallest mountains", "lines": [4, 5]}],
    }


async def test_an_opened_page_numbers_its_lines_and_marks_its_links(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        await call(client, "search", query="Everest")
        opened = await call(client, "open", id=0)
    assert opened.text == (
        "[1] Tallest mountains (https://folder.test/mountains.html)\n"
        "**viewing lines [0 - 6] of 6**\n"
        "\n"
        "L0: \n"
        "L1: URL: https://folder.test/mountains.html\n"
        "L2: # Tallest mountains\n"
        "L3: \n"
        "L4: Mount Everest is 8849 metres high, says 【0†the survey†survey.example】.\n"
        "L5: \n"
        "L6: More about 【1†rivers】."
    )
    assert opened.facts == {
        "cursor": 1,
        "url": "https://folder.test/mountains.html",
        "title": "Tallest mountains",
        "lines": [0, 6],
        "action": {"type": "open_page", "url": "https://folder.test/mountains.html"},
    }


async def test_find_shows_matches_as_links_to_their_lines(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        await call(client, "open", id="https://folder.test/rivers/long.html")
        found = await call(client, "find", pattern="NUMBER 250 flows")
        there = await call(client, "open", id=0)
    assert found.text.startswith(
        "[1] Find results for text: `NUMBER 250 flows` in `Longest rivers` "
        "(https://folder.test/rivers/long.html/find?pattern=NUMBER%20250%20flows)\n"
        "**viewing lines [0 - 4] of 4**\n\nL0: # 【0†match at L502】\nL1: River number 250 flows on and on.\n"
    )
    assert found.facts is not None and there.facts is not None
    assert found.facts["title"] == "Longest rivers"
    assert found.facts["action"] == {
        "type": "find_in_page",
        "url": "https://folder.test/rivers/long.html",
        "pattern": "NUMBER 250 flows",
    }
    assert there.facts["lines"][0] == 498
    assert "L502: River number 250 flows on and on." in there.text


async def test_an_open_without_id_scrolls(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        first = await call(client, "open", id="https://folder.test/rivers/long.html")
        more = await call(client, "open", loc=100, num_lines=3)
        again = await call(client, "open", cursor=0)
    assert first.facts is not None and more.facts is not None and again.facts is not None
    assert first.facts["lines"][1] < 601, "a long page is not shown at once"
    assert (more.facts["cursor"], more.facts["lines"]) == (1, [100, 102])
    assert more.text.endswith("L100: River number 49 flows on and on.\nL101: \nL102: River number 50 flows on and on.")
    assert (again.facts["cursor"], again.facts["lines"]) == (2, first.facts["lines"])


REFUSALS: list[tuple[str, dict[str, Any], str | None]] = [
    ("open", {"cursor": 5}, "There is no cursor 5: the latest is 0."),
    ("open", {"id": 99}, "There is no link 99 on that page."),
    ("open", {"loc": 9000}, "`loc` is 9000, but the last line of the page is 6."),
    ("open", {"id": "mountains"}, "`id` is neither the number of a link nor a whole URL (https://...)."),
    ("open", {"id": "https://folder.test/none.html"}, "https://folder.test/ has no such page."),
    ("open", {"id": "https://folder.test/%2e%2e/outside.html"}, "https://folder.test/ has no such page."),
    ("open", {"id": "https://folder.test//etc/passwd"}, "https://folder.test/ has no such page."),
    ("open", {"id": "https://folder.test/link.html"}, "https://folder.test/ has no such page."),
    ("open", {"id": "https://folder.test/.hidden.html"}, "https://folder.test/ has no such page."),
    ("open", {"id": "https://folder.test/a%00b"}, "https://folder.test/ has no such page."),
    ("open", {"id": "https://[::1"}, "That is not a URL."),
    ("open", {"id": "http://127.0.0.1/"}, "There is no web here: only pages of https://folder.test/ can be opened."),
    ("open", {"id": -2}, "`id` of `open`: input should be greater than or equal to -1."),
    ("find", {"pattern": "abracadabra"}, "The page has no match for `abracadabra`."),
    ("find", {"pattern": " "}, "The page has no match for ``."),
    ("find", {}, "`pattern` of `find`: field required."),
    ("find", {"pattern": "x", "page": 1}, "`find` takes no `page`: it takes `pattern`, `cursor`."),
    ("search", {"query": "abracadabra"}, "The search found nothing: try other words."),
    ("search", {"query": "Everest", "topn": "many"}, None),
    ("search", {"query": "Everest", "source": "papers"}, "There is no such `source`: the only one is `web`."),
    ("close", {}, "There is no tool `close`: there are `search`, `open`, `find`."),
]


async def test_a_failed_call_is_one_sentence_and_opens_nothing(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        await call(client, "open", id="https://folder.test/mountains.html")
        for tool, arguments, sentence in REFUSALS:
            reason = await refusal(client, tool, **arguments)
            assert sentence in (None, reason), (tool, arguments)
        after = await call(client, "open")
    assert after.facts is not None and after.facts["cursor"] == 1


async def test_find_refuses_search_results_and_matches(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        assert "No page is open yet" in await refusal(client, "find", pattern="x")
        await call(client, "search", query="Everest")
        assert "results of a search: open one first" in await refusal(client, "find", pattern="Everest")
        assert "`view_source` is for pages" in await refusal(client, "open", view_source=True)


async def test_sessions_do_not_see_each_other(server: BrowserServer) -> None:
    async with Client(server.url) as one, Client(server.url) as two:
        await call(one, "open", id="https://folder.test/mountains.html")
        assert "No page is open yet" in await refusal(two, "open", cursor=0)
        opened = await call(two, "open", id="https://folder.test/notes.txt")
        mine = await call(one, "open", cursor=0)
    assert opened.facts is not None and opened.facts["cursor"] == 0
    assert "Mount Everest" in mine.text


async def test_simultaneous_calls_get_different_cursors(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        opened = await asyncio.gather(*(call(client, "open", id="https://folder.test/notes.txt") for _ in range(20)))
    assert sorted(view.facts["cursor"] for view in opened if view.facts) == list(range(20))


async def test_a_search_sees_changes_in_the_folder(server: BrowserServer, web: Path) -> None:
    async with Client(server.url) as client:
        assert "found nothing" in await refusal(client, "search", query="glaciers")
        (web / "new.html").write_text("<title>Ice</title><p>All about glaciers.")
        found = await call(client, "search", query="glaciers")
        (web / "new.html").unlink()
        assert "found nothing" in await refusal(client, "search", query="glaciers")
        volcanoes = await call(client, "search", query="volcanoes")
        several = await call(client, "search", query="Survey of plain VOLCANOES")
    assert found.facts is not None and volcanoes.facts is not None and several.facts is not None
    assert [source["url"] for source in found.facts["action"]["sources"]] == ["https://folder.test/new.html"]
    assert [source["url"] for source in volcanoes.facts["action"]["sources"]] == ["https://folder.test/notes.txt"]
    most_words_first = ["https://folder.test/notes.txt", "https://folder.test/mountains.html"]
    assert [source["url"] for source in several.facts["action"]["sources"]] == most_words_first


# Sessions and limits


async def test_a_client_of_the_sessionless_protocol_falls_back_to_a_session(server: BrowserServer) -> None:
    async with Client(server.url, mode="auto") as client:
        assert client.protocol_version == "2025-11-25"
    async with Client(server.url, mode="2026-07-28") as client:
        with pytest.raises(MCPError, match="initialize handshake"):
            await client.call_tool("search", {"query": "Everest"})


async def test_stdio_serves_one_session(web: Path) -> None:
    options = ["-m", "workers.toolservers.browser", "--stdio", "--backend", "folder", "--folder", str(web)]
    async with Client(StdioServerParameters(command=sys.executable, args=options, env=dict(os.environ))) as client:
        await call(client, "search", query="Everest")
        opened = await call(client, "open", id=0)
    assert "Mount Everest" in opened.text


async def test_the_oldest_pages_are_dropped_and_a_long_page_is_truncated_with_a_note(web: Path, tmp_path: Path) -> None:
    """A server of its own, for its options; so have those below."""
    options = ("--max-pages", "2", "--max-page-characters", "2000", "--view-bytes", "512")
    with browser_server(tmp_path / "log", "--backend", "folder", "--folder", str(web), *options) as server:
        async with Client(server.url) as client:
            for cursor in range(3):
                opened = await call(client, "open", id="https://folder.test/notes.txt")
                assert opened.facts is not None and opened.facts["cursor"] == cursor
            assert await refusal(client, "open", cursor=0) == "The page at cursor 0 is gone: only the last 2 are kept."
            assert not (await call(client, "open", cursor=1)).failed
            opened = await call(client, "open", id="https://folder.test/rivers/long.html")
            end = await call(client, "open", loc=2, num_lines=100_000)
    assert len(opened.text.encode()) < 700
    assert end.text.endswith("[The page goes on; only its first 2000 characters were read.]")


async def test_sessions_are_limited_a_client_that_leaves_makes_room_and_sigterm_ends_an_open_one(
    web: Path, tmp_path: Path
) -> None:
    options = ("--backend", "folder", "--folder", str(web), "--max-sessions", "1")
    with browser_server(tmp_path / "log", *options) as server:
        for _ in range(3):
            async with (
                Client(server.url) as client,
                httpx.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SECONDS) as http,
            ):
                assert not (await call(client, "search", query="Everest")).failed
                assert (await http.post(server.url, json=INITIALIZE)).status_code == 503
        async with Client(server.url) as client:
            await call(client, "search", query="Everest")
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: server.process.poll() is not None, what="the server stops")
    assert "Traceback" not in server.log.read_text()


async def test_a_session_ends_when_idle_and_makes_room(web: Path, tmp_path: Path) -> None:
    options = ("--backend", "folder", "--folder", str(web), "--max-sessions", "1", "--idle-seconds", "0.2")
    with browser_server(tmp_path / "log", *options) as server:
        async with httpx.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SECONDS) as http:
            first = await http.post(server.url, json=INITIALIZE)

            async def opened() -> httpx.Response | None:
                answer = await http.post(server.url, json=INITIALIZE)
                return answer if answer.status_code == 200 else None

            await until(opened, what="the idle session ends")
            session = {"Mcp-Session-Id": first.headers["mcp-session-id"]}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post(server.url, json=ping, headers=session)).status_code == 404


# Which clients are accepted


async def test_a_token_is_required_if_one_is_set(web: Path, tmp_path: Path) -> None:
    options = ("--backend", "folder", "--folder", str(web), "--host", "0.0.0.0")
    with browser_server(tmp_path / "log", *options, LONGHAUL_TOOLS_TOKEN="sesame") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        async with httpx.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SECONDS) as http:
            for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}):
                refused = await http.post(url, json=INITIALIZE, headers=headers)
                assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer sesame"}) as http2,
            Client(streamable_http_client(url, http_client=http2)) as client,
        ):
            assert not (await call(client, "search", query="Everest")).failed
    assert "sesame" not in server.log.read_text()


async def test_a_web_page_cannot_reach_the_tools_through_its_visitor(server: BrowserServer) -> None:
    async with httpx.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SECONDS) as http:
        rebound = await http.post(server.url, json=INITIALIZE, headers={"Host": "evil.example"})
        foreign = await http.post(server.url, json=INITIALIZE, headers={"Origin": "https://evil.example"})
    assert (rebound.status_code, foreign.status_code) == (421, 403)


async def test_neither_queries_nor_urls_nor_sessions_are_logged(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        await call(client, "search", query="Everest quarrelsome")
        await call(client, "open", id="https://folder.test/quarrelsome.html")
        await call(client, "find", pattern="quarrelsome")
    async with httpx.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SECONDS) as http:
        began = await http.post(server.url, json=INITIALIZE)
        await http.delete(server.url, headers={"Mcp-Session-Id": began.headers["mcp-session-id"]})
        await http.post(server.url, json=INITIALIZE, headers={"Mcp-Session-Id": began.headers["mcp-session-id"]})
    log = server.log.read_text()
    assert "quarrelsome" not in log and "folder.test" not in log
    assert json.dumps(began.headers["mcp-session-id"]).strip('"') not in log
