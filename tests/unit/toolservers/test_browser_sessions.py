"""The browser's MCP server in this process: what a session leaves behind, and what an error reveals."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
from mcp import Client
from mcp_types import TextContent

from tests.support.waiting import until
from workers.toolservers.browser import server as module
from workers.toolservers.browser.browser import Browser, Limits
from workers.toolservers.browser.pages import Format, Hit, Page
from workers.toolservers.browser.server import build_server


class Bookshelf:
    """A back end with one page for every URL."""

    async def search(self, query: str, topn: int) -> list[Hit]:
        return [Hit("https://shelf.test/", "Shelf", "Books.")]

    async def fetch(self, url: str) -> Page:
        if "bug" in url:
            raise RuntimeError(f"at {url}")
        return Page(url, "Books.", Format.TEXT)


async def test_a_session_s_pages_go_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    browsers: list[weakref.ref[Browser]] = []

    class Watched(Browser):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            browsers.append(weakref.ref(self))

    monkeypatch.setattr(module, "Browser", Watched)
    server = build_server(Bookshelf(), Limits())
    async with Client(server, mode="legacy") as one, Client(server, mode="legacy") as two:
        for client in (one, two, one):
            await client.call_tool("search", {"query": "books"})
        assert len(browsers) == 2 and all(browser() is not None for browser in browsers)
    await until(lambda: gc.collect() >= 0 and not any(browser() for browser in browsers), what="the browsers are gone")


async def test_an_internal_error_reveals_nothing_of_the_page(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "longhaul"):
        async with Client(build_server(Bookshelf(), Limits()), mode="legacy") as client:
            result = await client.call_tool("open", {"id": "https://shelf.test/bug"})
            after = await client.call_tool("open", {"id": "https://shelf.test/"})
    assert result.is_error and not after.is_error
    assert result.content == [TextContent(text="The browser failed at this; something else may work.")]
    assert "open failed: RuntimeError" in caplog.text and "shelf.test" not in caplog.text
