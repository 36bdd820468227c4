"""Commands in the process of the tests."""

from __future__ import annotations

import asyncio
from threading import Lock

from typer.testing import CliRunner

from app.cli import cli
from tests.support.commands import Ran, Shell


class ShellHere(Shell):
    """Runs commands in a thread of the tests: a process of its own takes one or two seconds of CPU for its imports."""

    _turn = Lock()

    async def run(self, *arguments: str) -> Ran:
        return await asyncio.to_thread(self._run, *arguments)

    def _run(self, *arguments: str) -> Ran:
        with self._turn:  # the environment is one for all threads
            ended = CliRunner(env=self.variables).invoke(cli, arguments)
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        return Ran(ended.exit_code, ended.stdout, ended.stderr)
