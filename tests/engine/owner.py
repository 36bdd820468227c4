"""`python -m tests.engine.owner plain|hung`: a process that owns processes like vLLM's, for tests to kill.

It prints `ready` once they run, and then does nothing. `hung`: they ignore every signal but SIGKILL.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time

from workers.engine.lifeline import Lifeline


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def end(*_: object) -> None:
    """Ends this process as vLLM's handlers of signals do."""
    raise SystemExit


def spin(kind: str, generations: int, ready: multiprocessing.synchronize.Event) -> None:
    """Handles signals as vLLM does, or ignores them if it is `hung`; starts this many generations of children."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if kind == "hung" else end)
    if generations:
        multiprocessing.get_context("spawn").Process(target=spin, args=(kind, generations - 1, ready)).start()
    else:
        ready.set()
    while True:
        time.sleep(0.1)


def own_plain(kind: str) -> None:
    """Starts processes like vLLM's: a child and a grandchild, from a thread that stays."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()

    def start() -> None:
        with Lifeline(niceness=5).attached():
            context.Process(target=spin, args=(kind, 1, ready)).start()
        ready.wait()
        say_ready()
        threading.Event().wait()

    threading.Thread(target=start).start()


if __name__ == "__main__":
    own_plain(sys.argv[1])
