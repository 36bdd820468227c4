"""A request that its interpreter does not read, when its sandbox ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from workers.toolservers.python.limits import Limits
from workers.toolservers.python.sandbox import Sandbox, _pipes


async def test_a_send_that_is_cancelled_late_takes_no_other_sandbox_s_writer() -> None:
    loop, may_end = asyncio.get_running_loop(), asyncio.Event()

    async def lines() -> AsyncIterator[bytes]:
        await may_end.wait()
        return
        yield b""

    async def wait() -> None:
        """It has ended."""

    jailer: Any = SimpleNamespace(stdout=lines(), wait=wait)
    ours, theirs = _pipes()
    sandbox = Sandbox(jailer, Limits(), ours)
    sending = asyncio.create_task(sandbox._send({"code": "x" * 1_000_000}))
    await asyncio.sleep(0)
    for end in theirs.values():
        os.close(end)
    may_end.set()
    await sandbox._ended
    read, write = os.pipe()
    number = os.dup2(write, ours["requests"])  # the next sandbox's pipe may have this number
    loop.add_writer(number, lambda: None)
    sending.cancel()
    await asyncio.wait([sending])
    assert loop.remove_writer(number)
    for each in {read, write, number}:
        os.close(each)
