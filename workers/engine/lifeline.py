"""Ties every process of an engine to the worker that started it: none outlives it, whatever killed it.

vLLM starts EngineCore, and that starts one process per device, by `multiprocessing`. The `_config` of
a process is what `multiprocessing` hands down from parent to child to grandchild, and the first thing
that a child unpickles: before it imports vLLM (seconds) and long before vLLM would load a plugin
(after a handshake with its parent, for which it waits five minutes). An object in it that pickles as a
call therefore runs in every engine process, first of all. What it calls asks the kernel for a SIGKILL
when the parent dies, which also ends a process that hangs in native code.

Linux sends that signal when the *thread* dies that started the child: start an engine on a thread
that lives as long as the engine.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from config.process import die_with_parent

KEY = "longhaul.lifeline"
CPU_NICENESS = 10
"""On a machine without an accelerator an engine takes what CPU there is: everybody else goes first."""

_MOST_NICE = 19


class Lifeline:
    """What the processes of one engine carry; `niceness` (0 to 19) is the least they take."""

    def __init__(self, niceness: int = 0) -> None:
        self.niceness = niceness

    def __reduce__(self) -> tuple[Any, ...]:
        return tie, (os.getpid(), self.niceness)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Processes that `multiprocessing` makes in here belong to this lifeline, and so do theirs."""
        handed_down = _handed_down(multiprocessing.current_process())
        handed_down[KEY] = self
        try:
            yield
        finally:
            del handed_down[KEY]

    def processes(self) -> list[BaseProcess]:
        """The living processes that were made under this lifeline, without their own children."""
        return [child for child in multiprocessing.active_children() if _handed_down(child).get(KEY) is self]

    def cut(self) -> None:
        """Kills them; the kernel then kills their children."""
        for child in self.processes():
            child.kill()

    def gone(self, seconds: float) -> bool:
        """Whether all of them are, by then at the latest: the kernel takes its time for a large one. Blocks."""
        end = time.monotonic() + seconds
        for child in self.processes():
            child.join(max(0.0, end - time.monotonic()))
        return not self.processes()


def _handed_down(process: BaseProcess) -> dict[str, Any]:
    config: dict[str, Any] = vars(process)["_config"]
    return config


def tie(parent: int, niceness: int) -> Lifeline:
    """Runs in a new engine process: makes it die with `parent`, the process that started it."""
    if os.getpid() != parent:
        os.setpgid(0, 0)  # Ctrl-C and a closed terminal are for the worker, which stops its engine itself
        die_with_parent(parent)
        _be_nice(niceness)
    return Lifeline(niceness)


def _be_nice(niceness: int) -> None:
    if niceness > os.getpriority(os.PRIO_PROCESS, 0):  # less nice than before is for root
        os.setpriority(os.PRIO_PROCESS, 0, min(niceness, _MOST_NICE))
