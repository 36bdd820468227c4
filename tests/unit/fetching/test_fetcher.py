"""What is fetched of a URL: from the address that was checked, up to a limit."""

from __future__ import annotations

import gzip
import ipaddress
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.fetching.body import STEP_BYTES, read_body
from app.fetching.egress import EgressPolicy
from app.fetching.errors import FetchError, NotAllowed
from app.fetching.fetcher import Fetcher
from app.fetching.hosts import AllowedHosts
from app.fetching.resolving import Resolve, by_dns
from tests.support.certificates import Authority
from tests.support.little_web import LittleWeb, page, redirect

LOOPBACK = EgressPolicy(networks=(ipaddress.ip_network("127.0.0.1/32"),))


@pytest.fixture
def web() -> Iterator[LittleWeb]:
    with LittleWeb() as running:
        running.answers = {"/page": page("<title>A page</title>"), "/moved": redirect("/page")}
        yield running


def fetcher(resolve: Resolve = by_dns, tls: ssl.SSLContext | None = None) -> Fetcher:
    return Fetcher(lambda *_: LOOPBACK, 100_000, 20.0, resolve, tls)


class Names:
    """A resolver that gives another answer each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0)


async def test_the_address_that_was_checked_is_the_address_connected_to(web: LittleWeb) -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    found = await fetcher(names).fetch(f"http://rebinding.test:{web.port}/page", {})
    assert found.url == f"http://rebinding.test:{web.port}/page"
    assert names.asked == ["rebinding.test"], "looked up once"
    assert web.asked[-1].headers["Host"] == f"rebinding.test:{web.port}"


async def test_a_name_is_checked_at_every_redirect(web: LittleWeb) -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    with pytest.raises(FetchError, match=r"rebinding\.test is refused"):
        await fetcher(names).fetch(f"http://rebinding.test:{web.port}/moved", {})
    assert len(names.asked) == 2


async def test_a_name_with_a_private_address_among_public_ones_is_refused(web: LittleWeb) -> None:
    before = len(web.asked)
    for addresses in (["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"]):
        with pytest.raises(FetchError, match="not public"):
            await fetcher(Names(addresses)).fetch(f"http://mixed.test:{web.port}/page", {})
    assert len(web.asked) == before


async def test_a_certificate_is_for_the_name_and_not_for_the_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority.file))
    with LittleWeb(tls=authority.context("good.test")) as web:
        web.answers["/page"] = page("<title>Sealed</title>")

        def names() -> Names:
            return Names(["127.0.0.1"])

        found = await fetcher(names(), trusting).fetch(f"https://good.test:{web.port}/page", {})
        assert found.body == b"<title>Sealed</title>"
        with pytest.raises(FetchError, match=r"certificate of bad\.test cannot be verified"):
            await fetcher(names(), trusting).fetch(f"https://bad.test:{web.port}/page", {})
        assert [asked.headers["Host"] for asked in web.asked] == [f"good.test:{web.port}"]


async def test_a_host_that_is_not_allowed_is_not_even_looked_up(web: LittleWeb) -> None:
    names = Names(["127.0.0.1"])
    strict = Fetcher(AllowedHosts([f"good.test:{web.port}"]).policy, 100_000, 20.0, names)
    web.answers["/away"] = redirect(f"http://bad.test:{web.port}/page")
    with pytest.raises(NotAllowed, match=rf"does not allow bad\.test:{web.port}"):
        await strict.fetch(f"http://bad.test:{web.port}/page", {})
    assert names.asked == web.asked == []
    with pytest.raises(NotAllowed, match="does not allow"):
        await strict.fetch(f"http://good.test:{web.port}/away", {})
    assert names.asked == ["good.test"] and [asked.path for asked in web.asked] == ["/away"]


# bodies


async def _chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_is_decompressed_and_truncated() -> None:
    packed = gzip.compress(b"word " * 1000)
    halves = (packed[:10], packed[10:])
    assert await read_body(_chunks(*halves), "gzip", 10_000) == b"word " * 1000
    assert await read_body(_chunks(*halves), "GZIP", 7) == b"word wo"
    assert await read_body(_chunks(zlib.compress(b"x")), "deflate", 9) == b"x"
    assert await read_body(_chunks(b"ab", b"cd"), "", 3) == b"abc"
    assert await read_body(_chunks(gzip.compress(bytes(10**7))), "gzip", 1000) == bytes(1000)
    for encoding in ("br", "gzip, gzip", "zstd"):
        with pytest.raises(FetchError, match="compression"):
            await read_body(_chunks(packed), encoding, 100)


async def test_nothing_is_read_behind_the_end_of_a_compressed_body() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield gzip.compress(b"word")
        while True:
            yield b"x" * 1000

    assert await read_body(endless(), "gzip", 100) == b"word"
    long = bytes(3 * STEP_BYTES + 1)
    assert await read_body(_chunks(zlib.compress(long)), "deflate", 10 * STEP_BYTES) == long
    with pytest.raises(FetchError, match="damaged"):
        await read_body(_chunks(b"no gzip"), "gzip", 100)
