"""The Procfile: which processes to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.local.errors import LocalError
from config.process import CHECKOUT

PROCFILE = CHECKOUT / "config" / "Procfile"
"""Longhaul's own. In the checkout it is a link to the one at the top, in the package a file."""
RELEASE = "release"
"""The process that runs once, to its end, before all others."""
API = "api"
"""The process whose clients wait: it is stopped before the others."""
WORKER = "worker"
"""The process that runs for each worker of each model (workers/plan.py)."""
_LINE = re.compile(r"([A-Za-z0-9_-]+):\s*(\S.*)")
_ASSIGNMENTS = re.compile(r"^(?:[A-Za-z_]\w*=\S*\s+)*")
_COMMAND = re.compile(r"\blonghaul\s+([a-z][a-z-]*)")
_SHELL = re.compile(r"[;&|<>()`\n]|\$\(")


@dataclass(frozen=True, slots=True)
class Process:
    """One process to run: `command` is for a shell; `env` is added to the environment of all."""

    name: str
    command: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def longhaul_command(self) -> str | None:
        """`api` of `longhaul api`; None: it runs something else."""
        found = _COMMAND.search(self.command)
        return None if found is None else found[1]

    @property
    def argv(self) -> tuple[str, ...]:
        """The command with `exec` where possible, so that a stop signal reaches the program and not a shell."""
        command = self.command
        if not _SHELL.search(command):
            command = _ASSIGNMENTS.sub(r"\g<0>exec ", command, count=1)
        return ("/bin/sh", "-c", command)


def parse(text: str) -> dict[str, str]:
    """Commands by process name, in the order of the file. Raises LocalError, which names the line."""
    commands: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise LocalError(f"Procfile, line {number}: not of the form 'name: command'")
        if match[1] in commands:
            raise LocalError(f"Procfile, line {number}: a second process {match[1]!r}")
        commands[match[1]] = match[2]
    return commands


def once(commands: Mapping[str, str]) -> list[Process]:
    """The processes that run once for as long as Longhaul does: all but `release` and `worker`."""
    return [Process(name, command) for name, command in commands.items() if name not in (RELEASE, WORKER)]
