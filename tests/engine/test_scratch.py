from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from config.process import CHECKOUT
from workers.engine.scratch import Scratch


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_removing_the_folder_removes_its_files(tmp_path: Path) -> None:
    scratch = Scratch()
    (scratch.open() / "socket").touch()
    scratch.remove()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_removing_a_folder_that_was_never_opened_does_nothing() -> None:
    Scratch().remove()


def test_a_living_process_keeps_its_folder() -> None:
    first, second = Scratch(), Scratch()
    path = first.open()
    second.open()
    assert path.is_dir()
    first.remove()
    second.remove()


def test_the_next_process_removes_the_folder_of_a_killed_one(tmp_path: Path) -> None:
    code = f"""
import os, signal, tempfile
from workers.engine.scratch import Scratch
tempfile.tempdir = {str(tmp_path)!r}
scratch = Scratch()
(scratch.open() / "socket").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=False)
    (left,) = tmp_path.iterdir()
    scratch = Scratch()
    scratch.open()
    assert not left.exists()
    scratch.remove()


def test_a_folder_is_left_alone_while_its_process_locks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Scratch(), Scratch()
    lock = fcntl.flock

    def opened_meanwhile(file: IO[str], how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        second.open()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", opened_meanwhile)
    assert first.open().is_dir()
    first.remove()
    second.remove()


def test_a_folder_that_has_no_lock_yet_is_left_alone(tmp_path: Path) -> None:
    fresh = tmp_path / "longhaul-engine-fresh"
    fresh.mkdir()
    scratch = Scratch()
    scratch.open()
    assert fresh.is_dir()
    scratch.remove()
