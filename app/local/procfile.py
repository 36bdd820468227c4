"""The Procfile: which processes to run, and how many of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.local.errors import LocalError
from config.process import CHECKOUT

PROCFILE = CHECKOUT / "config" / "Procfile"
"""Longhaul's own. In the checkout it is a link to the one at the top, in the package a file."""
RELEASE = "release"
"""The process that runs once, to its end, before all others."""
WORKER = "worker"
_LINE = re.compile(r"([A-Za-z0-9_-]+):\s*(\S.*)")
_ASSIGNMENTS = re.compile(r"(?:[A-Za-z_]\w*=\S*\s+)*")
_SHELL = re.compile(r"[;&|<>()`\n]|\$\(")


@dataclass(frozen=True, slots=True)
class Process:
    """One process to run: `command` is for a shell; `env` is added to the environment of all."""

    name: str
    command: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command with `exec` where possible, so that a stop signal reaches the program and not a shell."""
        command = self.command
        if not _SHELL.search(command):
            end = _assignments_end(command)
            command = f"{command[:end]}exec {command[end:]}"
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


def formation(commands: Mapping[str, str], models: Sequence[str], workers: int) -> list[Process]:
    """All processes but `release`: each once, and `workers` workers for each model."""
    processes = []
    for name, command in commands.items():
        if name == WORKER:
            processes += _workers(command, models, workers)
        elif name != RELEASE:
            processes.append(Process(name, command))
    return processes


def _workers(command: str, models: Sequence[str], count: int) -> list[Process]:
    """The workers, with the shortest names that differ: `worker`, `worker.2`, `worker.qwen3-8b.2`."""
    labels = [re.sub(r"[^a-z0-9.-]+", "-", model.rsplit("/", 1)[-1].lower()) for model in models]
    used = Counter(labels)
    processes = []
    for number_of_model, (model, label) in enumerate(zip(models, labels, strict=True), start=1):
        distinct = label if used[label] == 1 else f"{label}-{number_of_model}"
        base = WORKER if len(models) == 1 else f"{WORKER}.{distinct}"
        for number in range(1, count + 1):
            name = base if count == 1 else f"{base}.{number}"
            processes.append(Process(name, command, {"LONGHAUL_MODEL": model}))
    return processes


def _assignments_end(command: str) -> int:
    match = _ASSIGNMENTS.match(command)
    return match.end() if match else 0
