"""Reads processes from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC = Path("/proc")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state ([0]) and the parent ([1]) on; empty for a process that is gone."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def alive(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def children(pid: int) -> set[int]:
    """All living descendants of `pid`."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    parents = {each: int(stat[1]) for each in pids if (stat := _stat(each)) and stat[0] not in "ZX"}
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found


def marked(name: str, value: str) -> set[int]:
    """Processes with `name=value` in their environment."""
    entry = f"{name}={value}".encode()
    found = set[int]()
    for folder in PROC.iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and entry in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return {pid for pid in found if alive(pid)}


def engine_processes(pid: int) -> set[int]:
    """Descendants of `pid` that `multiprocessing` started, except its resource tracker."""
    return {child for child in children(pid) if _is_engine(child)}


def _is_engine(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes()
        return b"spawn_main" in command or command.startswith(b"VLLM::")
    return False


def pending(pid: int) -> set[int]:
    """The signals that wait for this process because it blocks them."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            bits = int(line.split()[1], 16)
            return {number for number in range(1, 65) if bits >> (number - 1) & 1}
    return set()


def niceness(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)
