"""The operators' commands as processes, with the URL of an API."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

CODE = "from app.cli import main; main()"


@dataclass(frozen=True)
class Ran:
    """One command that has ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed with `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class Shell:
    """Where commands run: their variables."""

    variables: dict[str, str]

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Shell:
        """One that knows an API's URL, and nothing of the services."""
        return cls({"LONGHAUL_URL": url, **({} if key is None else {"LONGHAUL_API_KEY": key})})

    async def run(self, *arguments: str) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CODE, *arguments),
            env={**os.environ, **self.variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())
