"""The data folder: made once, recognised later, and refused if it belongs to another user or program."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.local.errors import LocalError
from app.local.home import MARKER, Home, read_or_create
from config.settings import load_settings


def test_a_new_folder_becomes_a_lasting_data_folder(tmp_path: Path) -> None:
    first = Home.prepare(tmp_path / "a" / "home")
    assert Home.prepare(tmp_path / "a" / "home") == first
    assert first.path.stat().st_mode & 0o777 == 0o700


def test_an_empty_folder_becomes_the_data_folder(tmp_path: Path) -> None:
    assert Home.prepare(tmp_path).path == tmp_path.resolve()


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(LocalError, match=r"^LONGHAUL_HOME: .* is not Longhaul's data folder"):
        Home.prepare(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("")
    with pytest.raises(LocalError, match=f"{MARKER} is damaged"):
        Home.prepare(tmp_path)


@pytest.mark.root
def test_another_user_s_folder_is_refused_even_to_root(tmp_path: Path) -> None:
    Home.prepare(tmp_path)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(LocalError, match="belongs to another user"):
        Home.prepare(tmp_path)


def test_a_file_that_many_create_at_once_is_created_once(tmp_path: Path) -> None:
    made = iter(range(1000))
    with ThreadPoolExecutor(16) as threads:
        seen = set(threads.map(lambda _: read_or_create(tmp_path / "x", lambda: str(next(made))), range(64)))
    assert len(seen) == 1
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_configured_flower_password_is_not_written_down(tmp_path: Path) -> None:
    home = Home.prepare(tmp_path)
    assert home.flower_auth(load_settings(flower_auth="me:hunter2")) == "me:hunter2"
    assert not home.flower_file.exists()
