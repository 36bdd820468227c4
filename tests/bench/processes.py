"""Processes seen from outside: what they cost, which of them are engines, and how to hold them still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import Path

import psutil

TITLE = "VLLM::"
"""vLLM names its processes so."""


class Role(StrEnum):
    API = "api"
    WORKER = "worker"
    ENGINE = "engine"
    """vLLM's own processes, below an API or a worker."""
    MAINTENANCE = "maintenance"
    POSTGRES = "postgres"
    REDIS = "redis"


class ForeignEngine(Exception):
    """Somebody else's engine is alive: its processes keep cores busy, and nothing that is measured means anything."""


def tree(pid: int) -> list[int]:
    """`pid` and all below it that live; empty where it is gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    return []


def cpu_seconds(pids: Iterable[int]) -> float:
    """What these have used since they began, with their children that have ended."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def engines() -> list[int]:
    """Every live process of a vLLM engine on this machine."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if _is_engine(process)]


def refuse_foreign_engines(ours: Collection[int] = ()) -> None:
    """Raises ForeignEngine where an engine is alive that is not among `ours`."""
    foreign = [pid for pid in engines() if pid not in ours]
    if foreign:
        pids = ", ".join(map(str, foreign))
        raise ForeignEngine(f"an engine that is not ours is alive (pid {pids}): end it, or wait for its end")


def freeze(pids: Iterable[int]) -> None:
    _signal(pids, signal.SIGSTOP)


def thaw(pids: Iterable[int]) -> None:
    _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_engine(process: psutil.Process) -> bool:
    """By vLLM's title; those without one were made by multiprocessing and have vLLM's libraries loaded."""
    command = " ".join(process.info["cmdline"] or ())
    if command.startswith(TITLE):
        return True
    if "multiprocessing.spawn" not in command:
        return False
    with contextlib.suppress(OSError):
        return "/vllm/" in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
    return False
