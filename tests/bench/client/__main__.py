"""Reads a load, one line of JSON; prints `ready`, waits for a line, asks, and prints its figures as JSON.

The lines let the caller read the servers' counters exactly around the measurement. The client ends with its input: it
may run with real-time priority, and must not outlive the process that started it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable

import uvloop

from tests.bench.client.requests import LoadRunner, Refused
from tests.bench.client.tally import own_cpu
from tests.bench.load import Load

PRIORITY = 10
STDIN = 0
READ_BYTES = 1 << 20


def become_realtime() -> bool:
    """Whether this process goes before all others now; that takes root."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return False
    return True


def read_lines(take: Callable[[bytes], object]) -> None:
    """Hands every line of the input on, and ends this process at its end; by file descriptor, which has no lock."""
    rest = b""
    while data := os.read(STDIN, READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            take(line)
    os._exit(os.EX_IOERR)


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


async def main() -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def take(line: bytes) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    threading.Thread(target=read_lines, args=(take,), daemon=True).start()
    load = Load.decode(await lines.get())
    realtime = load.realtime and become_realtime()
    runner = LoadRunner(load)
    try:
        await runner.prepare()
    except Refused as error:
        sys.exit(f"bench: {error}")
    gc.collect()
    gc.disable()
    say(b"ready")
    await lines.get()
    begun, cpu = time.perf_counter(), own_cpu()
    await runner.measure()
    say(runner.tally.figures(time.perf_counter() - begun, own_cpu() - cpu, realtime).encode())
    await runner.clean_up()


if __name__ == "__main__":
    uvloop.run(main())
