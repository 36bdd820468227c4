"""Which processes are alive, and what they started."""

from __future__ import annotations

import contextlib

import psutil


def alive(process: int | psutil.Process) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running()) and found.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    """The process ids of all living children of `pid`, and of their children."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True) if alive(child)]
    except psutil.NoSuchProcess:
        return []


def tree(pid: int) -> list[int]:
    """The process and its descendants; none once it has ended."""
    return [pid, *descendants(pid)] if alive(pid) else []


def marked(name: str, value: str) -> list[psutil.Process]:
    """The living processes with `name=value` in their environment, whatever their parent is now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value and alive(process):
                found.append(process)
    return found
