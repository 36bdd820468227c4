"""An MCP server that comes with Longhaul, as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.process import CHECKOUT
from tests.support.forks import Forked
from tests.support.unprivileged import command
from tests.support.waiting import until_sync

START_SECONDS = 60.0
STOP_SECONDS = 30.0

Process = subprocess.Popen[bytes] | Forked


@contextmanager
def tool_process(
    module: str, log: Path, *options: str, as_nobody: bool = False, **environment: str
) -> Iterator[Process]:
    """Runs the server until the block ends; then it must stop on SIGTERM."""
    args, env = ["--port", "0", *options], {**os.environ, **environment}
    if as_nobody:
        program = command(sys.executable, "-m", module, *args)
        with log.open("wb") as errors:
            process: Process = subprocess.Popen(program, env=env, stderr=errors, stdin=subprocess.DEVNULL, cwd=CHECKOUT)
    else:
        process = Forked(module, args, env, Path(os.devnull), log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def address(process: Process, log: Path) -> str:
    """The URL of the server; waits until its log names it."""

    def url_in_log() -> str:
        text = log.read_text()
        assert process.poll() is None, text
        found = re.search(r" tools at (http://\S+)", text)
        return found[1] if found else ""

    return until_sync(url_in_log, START_SECONDS, "the server listens")
