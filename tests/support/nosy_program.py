"""A killable program whose job looks for what it should not have, and answers at length if it is asked to."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from app.killable.program import JobLimits, connected, serve


def main() -> None:
    serve(connected(), _work, JobLimits(5, 60, 2**28))


def _work(asked: BinaryIO, answers: BinaryIO) -> None:
    port, padding = json.loads(asked.readline())
    os.close(2)  # which leaves room for another file below any limit but none
    tried: dict[str, Callable[[], Any]] = {
        "network": lambda: socket.create_connection(("127.0.0.1", port)),
        "environment of the parent": Path(f"/proc/{os.getppid()}/environ").read_bytes,
        "file": Path(__file__).read_bytes,
        "other files": lambda: os.fstat(4),
    }
    had = [what for what, attempt in tried.items() if _works(attempt)]
    answers.write(json.dumps({"environment": dict(os.environ), "had": had, "padding": "x" * padding}).encode() + b"\n")


def _works(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
