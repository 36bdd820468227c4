"""The Procfile: its lines, its shell commands, and how many of each process there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.local.errors import LocalError
from app.local.procfile import Process, formation, parse
from config.settings import CHECKOUT

COMMANDS = {"release": "r", "api": "a", "worker": "w"}


def names(models: tuple[str, ...], workers: int) -> list[str]:
    return [process.name for process in formation(COMMANDS, models, workers)]


def test_names_and_commands_in_order() -> None:
    assert parse("# ours\n\nb: two  words \na-1: x\n") == {"b": "two  words", "a-1": "x"}


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


def test_release_is_not_supervised() -> None:
    assert names(("m",), 1) == ["api", "worker"]


def test_workers_have_the_shortest_distinct_names() -> None:
    assert names(("m",), 2) == ["api", "worker.1", "worker.2"]
    assert names(("Org/Big Model", "m"), 1) == ["api", "worker.big-model", "worker.m"]
    assert names(("x/m", "y/m"), 2) == ["api", "worker.m-1.1", "worker.m-1.2", "worker.m-2.1", "worker.m-2.2"]


def test_each_worker_gets_its_model() -> None:
    models = [dict(process.env) for process in formation(COMMANDS, ("x/m", "y"), 1) if process.name != "api"]
    assert models == [{"LONGHAUL_MODEL": "x/m"}, {"LONGHAUL_MODEL": "y"}]


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
