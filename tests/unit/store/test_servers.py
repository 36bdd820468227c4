"""Which of several Postgres servers is connected to."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import asyncpg
import pytest

from app.store import servers
from app.store.servers import Servers
from app.store.trouble import Trouble, trouble_of

URL = "postgresql://u:p%40ss@a:1,b:2,[::1]:3/x?sslmode=disable"
STANDBY = asyncpg.exceptions.TargetServerAttributeNotMatched("it is a standby")
STARTING = asyncpg.CannotConnectNowError("it starts")


class Network:
    """`asyncpg.connect` for servers that are up or down, by host; `asked` has every URL that was tried."""

    def __init__(self, **down: Exception) -> None:
        self.down = down
        self.asked: list[str] = []
        self.options: list[dict[str, object]] = []

    async def connect(self, url: str, **options: object) -> str:
        self.asked.append(url)
        self.options.append(options)
        host = urlsplit(url).hostname or ""
        if (error := self.down.get(host)) is not None:
            raise error
        return host


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(asyncpg, "connect", network.connect)
    return network


@pytest.mark.parametrize("error", [STANDBY, STARTING, TimeoutError(), ConnectionRefusedError()])
async def test_the_next_server_is_tried_after_a_standby_and_after_one_that_is_away(
    network: Network, error: Exception
) -> None:
    network.down["a"] = error
    assert await Servers(URL).connect() == "b"
    assert network.asked == [
        "postgresql://u:p%40ss@a:1/x?sslmode=disable",
        "postgresql://u:p%40ss@b:2/x?sslmode=disable",
    ]


async def test_the_server_that_was_connected_to_last_is_tried_first(network: Network) -> None:
    network.down["a"] = TimeoutError()
    tried = Servers(URL)
    await tried.connect()
    network.asked.clear()
    assert await tried.connect() == "b"
    assert len(network.asked) == 1
    network.down = {"b": STANDBY, "::1": STANDBY}
    assert await tried.connect() == "a"


async def test_every_server_has_its_own_time_limit_and_must_take_writes(network: Network) -> None:
    network.down = {"a": TimeoutError(), "b": TimeoutError()}
    await Servers(URL).connect()
    assert [(each["timeout"], each["target_session_attrs"]) for each in network.options] == [
        (servers.CONNECT_SECONDS, "read-write")
    ] * 3


@pytest.mark.parametrize("error", [STANDBY, STARTING, TimeoutError()])
async def test_without_a_server_that_takes_writes_postgres_is_away(network: Network, error: Exception) -> None:
    network.down = {"a": error, "b": error, "::1": error}
    with pytest.raises(Exception) as caught:
        await Servers(URL).connect()
    assert trouble_of(caught.value) is Trouble.AWAY


@pytest.mark.parametrize("url", ["postgresql://u:p@/x?host=%2Frun", "postgresql:///x", "postgresql://u:p@db:5432/x"])
async def test_the_url_of_one_server_is_left_as_it_is(network: Network, url: str) -> None:
    await Servers(url).connect()
    assert network.asked == [url]


async def test_what_the_driver_does_not_read_itself_does_not_reach_it(network: Network) -> None:
    """It would make server settings of the parameters."""
    url = "postgresql://u:p@a:1/x?sslmode=require&connect_timeout=9&channel_binding=prefer&application_name=lh"
    await Servers(url).connect()
    assert network.asked == ["postgresql://u:p@a:1/x?sslmode=require&application_name=lh"]
    assert network.options[0]["timeout"] == 9


async def test_the_authorities_that_the_system_trusts_are_asked_for_by_name(network: Network) -> None:
    await Servers("postgresql://u:p@a:1/x?sslrootcert=system").connect()
    assert network.asked == ["postgresql://u:p@a:1/x"]
    context = network.options[0]["ssl"]
    assert isinstance(context, ssl.SSLContext) and context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED


async def test_hosts_of_the_query_are_tried_one_after_the_other_too(network: Network) -> None:
    await Servers("postgresql://u:p@/x?host=/a,/b&port=1,2").connect()
    await Servers("postgresql://u:p@/x?host=/a,/b&port=7").connect()
    assert network.asked == ["postgresql://u:p@/x?host=%2Fa&port=1", "postgresql://u:p@/x?host=%2Fa&port=7"]
