"""The processes of an engine."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.support.processes import descendants


def engine_processes(pid: int) -> set[int]:
    """Descendants of `pid` that `multiprocessing` started, except its resource tracker."""
    return {child for child in descendants(pid) if _is_engine(child)}


def _is_engine(pid: int) -> bool:
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False
    return "spawn_main" in command or command.startswith("VLLM::")


def pending(pid: int) -> set[int]:
    """The signals that wait for this process because it blocks them."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            bits = int(line.split()[1], 16)
            return {number for number in range(1, 65) if bits >> (number - 1) & 1}
    return set()
