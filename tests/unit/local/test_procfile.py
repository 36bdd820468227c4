"""The Procfile: its lines, its shell commands, and which processes run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.local.errors import LocalError
from app.local.procfile import Process, once, parse
from config.settings import CHECKOUT


@pytest.mark.parametrize("line", ["no colon", ": nothing", "name:", "a b: c"])
def test_an_invalid_line_of_the_procfile_is_named(line: str) -> None:
    with pytest.raises(LocalError, match="Procfile, line 2: "):
        parse(f"a: b\n{line}\n")


def test_a_process_name_may_not_come_twice() -> None:
    with pytest.raises(LocalError, match="line 2: a second process 'a'"):
        parse("a: b\na: c\n")


def test_the_procfile_of_the_checkout_has_all_processes() -> None:
    commands = parse((Path(CHECKOUT) / "Procfile").read_text())
    assert list(commands) == ["release", "api", "worker", "maintenance", "flower"]
    assert commands["release"] == "longhaul migrate"
    assert all(commands[name] == f"longhaul {name}" for name in list(commands)[1:])


def test_release_runs_before_all_and_workers_run_for_each_model() -> None:
    assert once({"release": "r", "api": "a", "worker": "w", "flower": "f"}) == [
        Process("api", "a"),
        Process("flower", "f"),
    ]


@pytest.mark.parametrize(
    ("command", "shell"),
    [
        ("longhaul api", "exec longhaul api"),
        ("A=1 B=$C run --x", "A=1 B=$C exec run --x"),
        ("one && two", "one && two"),
        ("run > file", "run > file"),
    ],
)
def test_the_shell_execs_a_single_program(command: str, shell: str) -> None:
    assert Process("x", command).argv == ("/bin/sh", "-c", shell)
