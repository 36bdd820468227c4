"""The fault suite's own proxies and processes behave."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from app.local.children import Program
from tests.faults.fleet import Fleet, stop
from tests.faults.member import Member, Role
from tests.faults.proxy import HOST, Proxy
from tests.support.waiting import until


def proxy() -> Proxy:
    return Proxy(partial(asyncio.open_connection, HOST, 1))


async def test_a_closed_proxy_still_knows_its_port() -> None:
    """Found by the suite (seed 2): a program that is started again while its fleet ends needs the port."""
    closed = proxy()
    await closed.start()
    port = closed.port
    await closed.close()
    assert closed.port == port != 0


async def test_a_member_that_is_closed_while_it_starts_again_is_gone(tmp_path: Path) -> None:
    short = Program((sys.executable, "-S", "-c", ""), {}, tmp_path)
    member = Member("short", Role.WORKER, lambda: short, tmp_path / "log", proxy(), proxy())
    member.start()
    await until(lambda: member.starts > 1)
    await member.close()
    starts = member.starts
    assert member.pid is None
    await asyncio.sleep(0)
    assert member.starts == starts


async def test_a_member_that_failed_does_not_keep_others_from_stopping(tmp_path: Path) -> None:
    def failing() -> Program:
        raise IndexError("an unforeseen error")

    idle = Program((sys.executable, "-S", "-c", "import time; time.sleep(60)"), {}, tmp_path)
    bad, good = (
        Member(name, Role.WORKER, program, tmp_path / "log", proxy(), proxy())
        for name, program in (("bad", failing), ("good", lambda: idle))
    )
    for member in (bad, good):
        member.start()
    await until(lambda: good.pid)
    with pytest.raises(IndexError):
        await stop(cast(Fleet, SimpleNamespace(members=[bad, good])))
    assert good.pid is None
