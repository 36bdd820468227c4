"""The fault suite's own proxies and processes behave."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from app.local.children import Program
from tests.faults import clocks
from tests.faults.clocks import Clock
from tests.faults.fleet import Fleet, stop
from tests.faults.member import Member, Role
from tests.faults.proxy import HOST, Proxy
from tests.faults.world_faults import DAY
from tests.support.waiting import until

pytestmark = pytest.mark.long

HOUR = 3600


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


@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "print('Traceback (most recent call last):', '  File', '', 'ZeroDivisionError: division by zero', sep=chr(10))",
    ],
    ids=["python", "with an empty line of source"],
)
async def test_a_traceback_of_a_member_is_one_line_with_its_error(code: str, tmp_path: Path) -> None:
    failing = Program((sys.executable, "-S", "-c", code), {}, tmp_path)
    member = Member("failing", Role.WORKER, lambda: failing, tmp_path / "log", proxy(), proxy())
    member.start()
    await until(lambda: bool(member.error_lines))
    await member.close()
    assert member.error_lines[0] == "Traceback (most recent call last): ZeroDivisionError: division by zero"


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


def test_a_shifted_clock_shows_in_a_process_that_runs(tmp_path: Path) -> None:
    library = clocks.build(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler, so no clock can be shifted")
    clock = Clock(library, tmp_path / "clock")
    now = "time.time(), datetime.datetime.now().timestamp(), time.monotonic()"
    code = f"import datetime, sys, time\nfor _ in sys.stdin: print({now}, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-Ec", code],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = []
        for shift in (0, -40 * DAY, HOUR):
            clock.shift(shift)
            process.stdin.write("\n")
            process.stdin.flush()
            seen.append([float(part) for part in process.stdout.readline().split()])
        process.stdin.close()
    for (wall, date, _), shift in zip(seen, (0, -40 * DAY, HOUR), strict=True):
        assert wall == pytest.approx(time.time() + shift, abs=600)
        assert date == pytest.approx(wall, abs=600)
    assert seen[0][2] <= seen[1][2] <= seen[2][2]
