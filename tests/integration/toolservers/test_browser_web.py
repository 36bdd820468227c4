"""The browser on the web: a small web server plays SearXNG and Exa, and pages that must not be opened."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from mcp import Client

from config.server_kind import SEARCH_META
from tests.support.browser_server import BrowserServer, browser_server, call, refusal
from tests.support.little_web import Answer, Asked, LittleWeb, page, redirect


@pytest.fixture(scope="module")
def web() -> Iterator[LittleWeb]:
    with LittleWeb() as running:
        running.answers = {
            "/search": lambda asked: _results(running, asked),
            "/page": page("<title>A page</title><p>Words and <a href='/other?q=1#x'>a link</a>."),
            "/other": page("<title>Another</title><p>Other words."),
            "/moved": redirect("/page"),
            "/away": redirect("http://127.0.0.2:1/secret"),
            "/file": redirect("file:///etc/passwd"),
            "/around": redirect("/around"),
            "/gzip": Answer(gzip.compress(b"<p>Packed words"), headers={"Content-Encoding": "gzip"}),
            "/bomb": Answer(
                gzip.compress(gzip.compress(bytes(10_000_000))), headers={"Content-Encoding": "gzip, gzip"}
            ),
            "/bomb-of-one": Answer(gzip.compress(b"<p>" + b"o " * 5_000_000), headers={"Content-Encoding": "gzip"}),
            "/damaged": Answer(b"no gzip at all", headers={"Content-Encoding": "gzip"}),
            "/pdf": Answer(b"%PDF-1.7", headers={"Content-Type": "application/pdf"}),
            "/image": Answer(b"PNG", headers={"Content-Type": "image/png"}),
            "/text": Answer(b"# Plain\n\nwords", headers={"Content-Type": "text/plain"}),
            "/broken": Answer(b"<p>Sorry", 500),
            "/cookie": Answer(b"<p>Yes", headers={"Content-Type": "text/html", "Set-Cookie": "a=b"}),
        }
        yield running


ENGINE_TROUBLE = [
    (Answer(b"Forbidden", 403), "The search engine answers 403."),
    (Answer(b"Slow down", 429), "The search engine answers 429."),
    (Answer(b"<html>"), "The search engine answers no JSON."),
    (Answer(b"[]"), "The search engine answers no JSON object."),
    (redirect("http://127.0.0.2/"), "The search engine answers 302."),
]


def _results(web: LittleWeb, asked: Asked) -> Answer:
    """An answer of SearXNG in its JSON format."""
    if "format=json" not in asked.path:
        return page("<p>HTML")
    if trouble := re.search(r"q=trouble(\d)", asked.path):
        return ENGINE_TROUBLE[int(trouble[1])][0]
    if "q=nothing" in asked.path:
        return Answer(json.dumps({"query": "nothing", "number_of_results": 0, "results": []}).encode())
    results = [
        {
            "url": f"{web.url}/page",
            "title": "A page †",
            "content": "Words\nof 【3†interest】.",
            "engine": "x",
            "score": 2.0,
        },
        {"url": f"{web.url}/page", "title": "The same again", "content": "", "engine": "y"},
        {"url": f"{web.url}/other", "title": "", "content": None, "engine": "x"},
        {"url": "magnet:?xt=1", "title": "No page", "content": "", "engine": "z"},
    ]
    results += [{"url": f"{web.url}/page?{n}", "title": f"Page {n}", "content": "More."} for n in range(30)]
    answer = {"query": "words", "number_of_results": 0, "results": results, "answers": [], "unresponsive_engines": []}
    return Answer(json.dumps(answer).encode(), headers={"Content-Type": "application/json"})


@pytest.fixture(scope="module")
def server(web: LittleWeb, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserServer]:
    """A server that opens pages of 127.0.0.1, and of no other address that is not public."""
    options = ["--backend", "searxng", "--allow-network", "127.0.0.1/32", "--max-page-bytes", "100000", "--url"]
    with browser_server(tmp_path_factory.mktemp("browser") / "log", *options, web.url) as running:
        yield running


# SearXNG


async def test_searxng_s_results_are_shown_once_each_and_no_more_than_asked_for(
    server: BrowserServer, web: LittleWeb
) -> None:
    async with Client(server.url) as client:
        found = await call(client, "search", query="words & more", topn=2)
    assert web.asked[-1].path == "/search?q=words+%26+more&format=json&pageno=1"
    domain = web.url.removeprefix("http://")
    assert f"L4:   * 【0†A page ‡†{domain}】 Words of 〖3†interest〗." in found.text
    assert f"【1†{domain}†{domain}】" in found.text
    assert found.facts is not None
    assert [source["url"] for source in found.facts["action"]["sources"]] == [f"{web.url}/page", f"{web.url}/other"]


async def test_a_failing_search_engine_gives_one_sentence(server: BrowserServer) -> None:
    async with Client(server.url) as client:
        for number, (_, sentence) in enumerate(ENGINE_TROUBLE):
            assert await refusal(client, "search", query=f"trouble{number}") == sentence


# Pages


async def test_a_page_is_fetched_once_and_links_lead_on(server: BrowserServer, web: LittleWeb) -> None:
    async with Client(server.url) as client:
        await call(client, "search", query="words")
        opened = await call(client, "open", id=0)
        other = await call(client, "open", id=0)
        before = len(web.asked)
        again = await call(client, "open", id=0, cursor=0)
        assert len(web.asked) == before, "a page at hand is not fetched again"
        anew = await call(client, "open", id=f"{web.url}/page")
        assert len(web.asked) == before + 1, "a page named by its URL is"
    assert opened.text.endswith("L2: Words and 【0†a link】.")
    assert other.facts is not None and other.facts["url"] == f"{web.url}/other?q=1"
    assert opened.text.replace("[1]", "") == again.text.replace("[3]", "") == anew.text.replace("[4]", "")


async def test_a_redirect_is_followed_and_the_page_has_its_last_url(server: BrowserServer, web: LittleWeb) -> None:
    async with Client(server.url) as client:
        opened = await call(client, "open", id=f"{web.url}/moved")
    assert opened.facts is not None
    assert (opened.facts["url"], opened.facts["title"]) == (f"{web.url}/page", "A page")
    assert opened.facts["action"]["url"] == f"{web.url}/page"


PAGE_TROUBLE = [
    ("/none", "127.0.0.1 answers 404."),
    ("/broken", "127.0.0.1 answers 500."),
    ("/pdf", "The page is a PDF, and only HTML and plain text can be opened."),
    ("/image", "The page is image/png, and only HTML and plain text can be opened."),
    ("/damaged", "The answer came damaged."),
    ("/bomb", "The answer came in a compression that was not asked for."),
    ("/around", "127.0.0.1 redirects more than 5 times."),
    ("/file", "Only http:// and https:// URLs can be opened."),
    ("/away", "127.0.0.2 is refused: it has an address that is not public."),
]


async def test_a_page_that_cannot_be_fetched_gives_one_sentence(server: BrowserServer, web: LittleWeb) -> None:
    async with Client(server.url) as client:
        for path, sentence in PAGE_TROUBLE:
            assert await refusal(client, "open", id=web.url + path) == sentence, path


async def test_compressed_pages_are_decompressed_up_to_the_limit(server: BrowserServer, web: LittleWeb) -> None:
    async with Client(server.url) as client:
        packed = await call(client, "open", id=f"{web.url}/gzip")
        await call(client, "open", id=f"{web.url}/bomb-of-one")
        end = await call(client, "open", loc=1240)
    assert packed.text.endswith("L2: Packed words")
    assert end.text.splitlines()[1] == "**viewing lines [1240 - 1251] of 1251**", "100000 bytes of 10 million"


async def test_no_cookie_goes_from_page_to_page(server: BrowserServer, web: LittleWeb) -> None:
    async with Client(server.url) as client:
        await call(client, "open", id=f"{web.url}/cookie")
        await call(client, "open", id=f"{web.url}/cookie")
    assert "Cookie" not in web.asked[-1].headers and "cookie" not in web.asked[-1].headers


async def test_a_page_that_never_arrives_fails_at_the_deadline(tmp_path: Path) -> None:
    go_on = threading.Event()

    def hang(_: Asked) -> Answer:
        go_on.wait(60)
        return page("<p>Late")

    with LittleWeb() as slow:
        slow.answers["/page"] = hang
        options = ("--backend", "searxng", "--url", slow.url, "--allow-network", "127.0.0.1/32", "--seconds", "0.5")
        with browser_server(tmp_path / "log", *options) as server:
            async with Client(server.url) as client:
                reason = await refusal(client, "open", id=f"{slow.url}/page")
        go_on.set()
    assert reason in ("It took longer than 0.5 s, and was given up.", "127.0.0.1 takes too long to answer.")


# Addresses that must not be reached

REFUSED = [
    "http://127.0.0.1:{port}/page",
    "http://localhost:{port}/page",
    "http://127.1:{port}/page",
    "http://2130706433:{port}/page",
    "http://0x7f000001:{port}/page",
    "http://[::ffff:127.0.0.1]:{port}/page",
    "http://[64:ff9b::127.0.0.1]/page",
    "http://169.254.169.254/latest/meta-data/",
    "http://user:secret@127.0.0.1:{port}/page",
    "http://93.184.215.14:{port}/page",
    "ftp://127.0.0.1/page",
    "file:///etc/passwd",
    "http:///page",
    "http://no-such-host.invalid/",
]


async def test_by_default_only_the_public_web_is_reached(web: LittleWeb, tmp_path: Path) -> None:
    before = len(web.asked)
    with browser_server(tmp_path / "log", "--backend", "searxng", "--url", web.url) as strict:
        async with Client(strict.url) as client:
            for url in REFUSED:
                reason = await refusal(client, "open", id=url.format(port=web.port))
                said = ("refused", "Only http", "password", "not a URL", "no host")
                assert any(words in reason for words in said) and "secret" not in reason, (url, reason)
    assert len(web.asked) == before


async def test_redirects_and_links_to_refused_addresses_are_refused(server: BrowserServer, web: LittleWeb) -> None:
    """A link, a redirect and a base element of a page are as untrusted as a URL of the model."""
    with LittleWeb("127.0.0.2") as private:
        private.answers["/secret"] = page("<p>Secret")
        web.answers["/redirect"] = redirect(f"{private.url}/secret")
        web.answers["/links"] = page(f"<base href='{private.url}'><a href='{private.url}/secret'>a</a> <a href=x>b</a>")
        async with Client(server.url) as client:
            assert "127.0.0.2 is refused" in await refusal(client, "open", id=f"{web.url}/redirect")
            await call(client, "open", id=f"{web.url}/links")
            for link in (0, 1):
                assert "127.0.0.2 is refused" in await refusal(client, "open", id=link)
        assert private.asked == []


# Exa


async def test_exa_searches_and_fetches(tmp_path: Path) -> None:
    with LittleWeb() as exa:
        hit = {"id": "1", "url": "https://a.example/x", "title": "A", "summary": "About A.", "score": 0.3}
        text = "<div><h1>A</h1><p>Whole <a href='/y'>text</a></p></div>"
        contents = {
            "results": [{"id": "https://a.example/x", "url": "https://a.example/x", "title": "A", "text": text}]
        }
        exa.answers["/search"] = Answer(json.dumps({"results": [hit, {"url": None}, "?"]}).encode())
        exa.answers["/contents"] = Answer(json.dumps(contents).encode())
        options = ("--backend", "exa", "--url", exa.url)
        with browser_server(tmp_path / "log", *options, EXA_API_KEY="exa-secret") as server:
            async with Client(server.url) as client:
                found = await call(client, "search", query="a", topn=5)
                opened = await call(client, "open", id=0)
                failure = {"id": "u", "status": "error", "error": {"tag": "CRAWL_NOT_FOUND"}}
                exa.answers["/contents"] = Answer(json.dumps({"results": [], "statuses": [failure]}).encode())
                missing = await refusal(client, "open", id="https://a.example/none")
                assert "Only http" in await refusal(client, "open", id="file:///etc/passwd")
                exa.answers["/search"] = Answer(b'{"error": "no credits"}', 402)
                poor = await refusal(client, "search", query="a")
                limits = ({"allowed_domains": ["a.example"], "country": "it"}, {"country": "Italy"})
                for each in limits:
                    await client.call_tool("search", {"query": "b"}, meta={SEARCH_META: each})
        assert {asked.headers["x-api-key"] for asked in exa.asked} == {"exa-secret"}
        searched, fetched = (json.loads(asked.body) for asked in exa.asked[:2])
    assert searched == {"query": "a", "numResults": 5, "contents": {"summary": True}}
    within, anywhere = (json.loads(asked.body) for asked in exa.asked[-2:])
    assert within == {**anywhere, "includeDomains": ["a.example"], "userLocation": "IT"}
    assert anywhere.keys() == searched.keys()
    assert fetched == {"urls": ["https://a.example/x"], "text": {"includeHtmlTags": True}}
    assert "【0†A†a.example】 About A." in found.text
    assert opened.text.endswith("L2: # A\nL3: \nL4: Whole 【0†text】")
    assert missing == "The page cannot be had: CRAWL_NOT_FOUND."
    assert poor == "The search engine answers 402."
    assert "exa-secret" not in server.log.read_text()


async def test_slow_sessions_do_not_hold_up_others(server: BrowserServer, web: LittleWeb) -> None:
    """Calls of one session wait for each other; calls of other sessions do not wait for them."""
    go_on = threading.Event()

    def hang(_: Asked) -> Answer:
        go_on.wait(60)
        return page("<title>Late</title>")

    web.answers["/slow"] = hang
    async with Client(server.url) as one, Client(server.url) as two:
        slow = asyncio.create_task(call(one, "open", id=f"{web.url}/slow"))
        behind = asyncio.create_task(call(one, "open"))
        fast = await call(two, "open", id=f"{web.url}/page")
        assert not slow.done() and not behind.done()
        go_on.set()
        assert "Late" in (await slow).text and "Late" in (await behind).text
    assert "A page" in fast.text


# Options of a search


async def test_a_search_finds_pages_of_allowed_domains_alone_and_opens_no_others(
    server: BrowserServer, web: LittleWeb
) -> None:
    domain = web.url.removeprefix("http://").partition(":")[0]
    async with Client(server.url) as client:
        within = {SEARCH_META: {"allowed_domains": [domain, "b.example"], "blocked_domains": ["c.b.example"]}}
        found = await client.call_tool("search", {"query": "words"}, meta=within)
        assert not found.is_error
        [query] = parse_qs(urlsplit(web.asked[-1].path).query)["q"]
        assert query == f"words (site:{domain} OR site:b.example) -site:c.b.example"
        elsewhere = {SEARCH_META: {"blocked_domains": [domain]}}
        nothing = await client.call_tool("search", {"query": "words"}, meta=elsewhere)
        assert nothing.is_error and "found nothing" in str(nothing.content)
        before = len(web.asked)
        opened = await client.call_tool("open", {"id": f"{web.url}/page"}, meta=elsewhere)
        assert opened.is_error and "must not use" in str(opened.content)
        assert len(web.asked) == before
