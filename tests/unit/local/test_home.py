"""The data folder: made once, recognised later, and refused if it belongs to another user or program."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.local.errors import LocalError
from app.local.home import LOCK_FILE, MARKER, Home, read_or_create, running_workers, with_running_services
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


def test_services_and_workers_of_a_killed_up_are_not_shown(tmp_path: Path) -> None:
    home = Home.prepare(tmp_path)
    settings = load_settings().model_copy(update={"home": tmp_path, "database_url": None, "redis_url": None})
    with home.showing_services({"DATABASE_URL": "postgresql:///x", "REDIS_URL": "redis:///x"}):
        home.show_workers([("worker-1", "m", "0")])
        with (tmp_path / LOCK_FILE).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = with_running_services(settings)
            assert (found.database_url, found.redis_url) == ("postgresql:///x", "redis:///x")
            assert running_workers(settings) == [("worker-1", "m", "0")]
        assert with_running_services(settings) == settings
        assert running_workers(settings) == []
