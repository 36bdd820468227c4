"""`python -m tests.engine.owner plain|vllm|apart...`: a process that owns engine processes, for tests to kill.

It prints `ready` once they run, and then does nothing. `apart`: the model runs in a process of its own, vLLM's default.
`vllm apart` starts one engine after the other, in a process that imports vLLM once.
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


ENGINE_ARGS: dict[str, dict[str, Any]] = {"vllm": {}, "apart": {"distributed_executor_backend": "mp"}}


async def own_vllm(kinds: list[str]) -> None:
    model = demo_model()
    engines = []
    for kind in kinds:
        args = {**model.engine_args, **ENGINE_ARGS[kind]}
        engines.append(await asyncio.to_thread(make_engine, replace(model, engine_args=args)))
        await engines[-1].start()
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
    if sys.argv[1] == "plain":
        own_plain()
    else:
        asyncio.run(own_vllm(sys.argv[1:]))
