"""Reads a load, one line of JSON; prints `ready`, waits for a line, asks, and prints its figures as JSON.

The lines are there for whoever reads the servers' counters: exactly around what is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time

import uvloop

from tests.bench.client.asking import Asking, Refused
from tests.bench.client.tally import own_cpu
from tests.bench.load import Load

PRIORITY = 10


def become_realtime() -> bool:
    """Whether this process goes before all others now; that takes root."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return False
    return True


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


async def main() -> None:
    load = Load.decode(sys.stdin.buffer.readline())
    realtime = load.realtime and become_realtime()
    asking = Asking(load)
    try:
        await asking.prepare()
    except Refused as error:
        sys.exit(f"bench: {error}")
    gc.collect()
    gc.disable()
    say(b"ready")
    await asyncio.to_thread(sys.stdin.buffer.readline)
    begun, cpu = time.perf_counter(), own_cpu()
    await asking.measure()
    say(asking.tally.figures(time.perf_counter() - begun, own_cpu() - cpu, realtime).encode())
    await asking.clean_up()


if __name__ == "__main__":
    uvloop.run(main())
