"""Web pages of other origins, HEAD, and how long an answer took: the app without its services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from app.api.middleware import HostMiddleware, check_origin
from app.main import create_app
from app.protocol.errors import Forbidden
from config.hosts import is_allowed_host
from config.settings import load_settings
from tests.support.api import CATALOG

PAGE = "https://app.example"
STRANGER = "https://elsewhere.example"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    urls = {"DATABASE_URL": "postgresql://nowhere/x", "REDIS_URL": "redis://nowhere"}
    app = create_app(load_settings(**urls, home=tmp_path, cors_origins=PAGE), CATALOG)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as opened:
        yield opened


async def test_an_allowed_page_may_read_answers_and_errors(client: httpx.AsyncClient) -> None:
    for path, status in (("/health/live", 200), ("/nowhere", 404)):
        answer = await client.get(path, headers={"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in (await client.get(path, headers={"origin": STRANGER})).headers


async def test_head_has_the_headers_of_get_and_no_body(client: httpx.AsyncClient) -> None:
    for path in ("/health/live", "/docs", "/openapi.json", "/v1/models", "/nowhere"):
        get, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-length"] == get.headers["content-length"]


async def test_head_where_there_is_no_get_is_a_405(client: httpx.AsyncClient) -> None:
    assert (await client.head("/v1/chat/completions")).headers["allow"] == "POST"


async def test_every_answer_says_how_long_it_took(client: httpx.AsyncClient) -> None:
    for path in ("/health/live", "/nowhere"):
        assert int((await client.get(path)).headers["openai-processing-ms"]) >= 0


@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:8000", "127.0.0.1.rebound.example", "localhost.rebound.example", ""]
)
async def test_a_foreign_host_is_refused_by_its_name_and_told_the_setting(client: httpx.AsyncClient, host: str) -> None:
    answer = await client.get("/v1/models", headers={"host": host, "origin": f"http://{host}"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (421, "host_not_allowed", "Host")
    assert f"'{host}'" in error["message"] and "LONGHAUL_ALLOWED_HOSTS" in error["message"]
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize("host", [[], [("host", "")], [("host", "rebound.example")], [("host", "a"), ("host", "b")]])
async def test_health_answers_to_any_host_and_to_none_and_nothing_else_does(
    client: httpx.AsyncClient, host: list[tuple[str, str]]
) -> None:
    """Probes of load balancers send no `Host`, as HAProxy's, or their own idea of one."""
    for path, status in (("/health/live", 200), ("/health", 421), ("/docs", 421), ("/v1/responses", 421)):
        request = client.build_request("GET", path)
        request.headers = httpx.Headers(host)
        assert (await client.send(request)).status_code == status


async def test_a_websocket_of_a_foreign_host_is_refused(tmp_path: Path) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def app(*_: object) -> None:
        raise AssertionError("the app is never asked")

    host = [(b"host", b"rebound.example"), (b"origin", b"http://rebound.example")]
    scope = {
        "type": "websocket",
        "path": "/v1/responses",
        "headers": host,
        "extensions": {"websocket.http.response": {}},
    }
    await HostMiddleware(app, ())(scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 421)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "a.localhost",
        "localhost.",
        "127.0.0.1:1",
        "10.1.2.3",
        "[::1]:8000",
        "ours.example:443",
    ],
)
def test_addresses_localhost_and_allowed_names_are_ours(host: str) -> None:
    assert is_allowed_host([host], {"ours.example"})


def test_hosts_that_are_no_name_or_come_twice_are_not_ours() -> None:
    for sent in ([], ["localhost", "localhost"], ["a b"], ["localhost@x"], ["ours.example"], ["1.2.3.4.x"], [":8000"]):
        assert not is_allowed_host(sent, ())
    assert is_allowed_host(["any.example"], {"*"})


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "is_refused"),
    [
        ("http://here:1", "HERE:1", (), False),
        (PAGE, "here", (PAGE,), False),
        (STRANGER, "here", ("*",), False),
        (STRANGER, "here", (PAGE,), True),
        ("null", "here", (PAGE,), True),
        ("http://[here", "here", (PAGE,), True),
    ],
)
def test_a_websocket_follows_the_same_list_of_origins(
    origin: str, host: str, allowed: tuple[str, ...], is_refused: bool
) -> None:
    scope = {"type": "websocket", "headers": [(b"origin", origin.encode()), (b"host", host.encode())]}
    with pytest.raises(Forbidden) if is_refused else nullcontext():
        check_origin(scope, allowed)
