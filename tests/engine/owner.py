"""`python -m tests.engine.owner vllm|apart|plain`: a process that owns engine processes, for tests to kill.

It prints `ready` once they run, and then does nothing. `apart`: the model runs in a process of its own, vLLM's default.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from tests.engine.cases import demo_model
from workers.engine import make_engine
from workers.engine.lifeline import Lifeline


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def own_vllm(**engine_args: Any) -> None:
    model = demo_model()
    model = replace(model, engine_args={**model.engine_args, **engine_args})
    engine = await asyncio.to_thread(make_engine, model)
    await engine.start()
    say_ready()
    await asyncio.Event().wait()


def spin(generations: int, ready: multiprocessing.synchronize.Event) -> None:
    """Ignores every signal but SIGKILL, like an engine that hangs; starts this many generations of children."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if generations:
        multiprocessing.get_context("spawn").Process(target=spin, args=(generations - 1, ready)).start()
    else:
        ready.set()
    while True:
        time.sleep(0.1)


def own_plain() -> None:
    """Starts processes like vLLM's: a child and a grandchild, from a thread that stays."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()

    def start() -> None:
        with Lifeline(niceness=5).attached():
            context.Process(target=spin, args=(1, ready)).start()
        ready.wait()
        say_ready()
        threading.Event().wait()

    threading.Thread(target=start).start()


if __name__ == "__main__":
    if sys.argv[1] == "vllm":
        asyncio.run(own_vllm())
    elif sys.argv[1] == "apart":
        asyncio.run(own_vllm(distributed_executor_backend="mp"))
    else:
        own_plain()
