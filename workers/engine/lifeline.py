"""Ties every process of an engine to the worker that started it: none outlives the worker, however it died.

Nor does one end before the worker ends it: engine processes do not hear SIGTERM and SIGINT. vLLM would abort all its
requests at once, while the worker still lets them end, or hands them over.

vLLM starts EngineCore, which starts one process per device, all by `multiprocessing`. `multiprocessing` hands the
`_config` of a process down to its children and grandchildren, and a child unpickles it first. That is before it imports
vLLM (seconds), and long before vLLM loads plugins (after a handshake with the parent, for which it waits five minutes).
So an object in `_config` that unpickles as a function call runs first in every engine process. The function asks the
kernel for a SIGKILL when the parent dies, which also ends a process that hangs in native code.

Linux sends that signal when the *thread* that started the child dies: start an engine on a thread that lives as long
as the engine.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from config.process import deaf_children, die_with_parent

KEY = "longhaul.lifeline"
CPU_NICENESS = 10
"""Without an accelerator an engine takes all CPU time it can get, so every other process goes first."""

_MAX_NICENESS = 19


class Lifeline:
    """Is handed to all processes of one engine; `niceness` (0 to 19) is the lowest that they run with."""

    def __init__(self, niceness: int = 0) -> None:
        self.niceness = niceness

    def __reduce__(self) -> tuple[Any, ...]:
        return bind_to_parent, (os.getpid(), self.niceness)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Processes that `multiprocessing` starts in this block belong to this lifeline, and so do their children."""
        resource_tracker.ensure_running()  # with the first process it would start, and make this thread hear signals
        handed_down = _handed_down(multiprocessing.current_process())
        handed_down[KEY] = self
        try:
            with deaf_children():
                yield
        finally:
            del handed_down[KEY]

    def processes(self) -> list[BaseProcess]:
        """The living processes that were started under this lifeline, without their children."""
        return [child for child in multiprocessing.active_children() if _handed_down(child).get(KEY) is self]

    def kill(self) -> None:
        """Kills these processes; the kernel then kills their children."""
        for child in self.processes():
            child.kill()

    def wait_until_gone(self, seconds: float) -> bool:
        """Waits until the processes are gone; False if one is left after `seconds`. Blocks."""
        end = time.monotonic() + seconds
        for child in self.processes():
            child.join(max(0.0, end - time.monotonic()))
        return not self.processes()


def _handed_down(process: BaseProcess) -> dict[str, Any]:
    config: dict[str, Any] = vars(process)["_config"]
    return config


def bind_to_parent(parent: int, niceness: int) -> Lifeline:
    """Runs in a new engine process and makes it die with `parent`, the process that started it."""
    if os.getpid() != parent:
        os.setpgid(0, 0)  # a closed terminal concerns the worker, which stops its engine itself
        die_with_parent(parent)
        if niceness > os.getpriority(os.PRIO_PROCESS, 0):  # only root may lower it
            os.setpriority(os.PRIO_PROCESS, 0, min(niceness, _MAX_NICENESS))
    return Lifeline(niceness)
