"""A worker's readiness, as a probe sees it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from app.local.errors import LocalError
from app.local.readiness import check_worker
from config.settings import Settings
from config.worker_readiness import WorkerReadiness, is_ready, waits_for


def test_a_worker_is_ready_while_its_lease_lasts_and_until_it_drains(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    assert not is_ready(file)
    worker = WorkerReadiness(file)
    worker.show(0.0)
    assert not is_ready(file), "the lease ran out: the worker hangs, or is frozen"
    worker.show(60.0)
    assert is_ready(file)
    worker.hide()
    assert not is_ready(file)
    worker.show(60.0)
    assert not is_ready(file), "a draining worker still has its lease"
    assert not list(tmp_path.iterdir())


def test_a_worker_that_waits_says_for_what_until_it_has_a_lease(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    assert waits_for(file) == ""
    worker = WorkerReadiness(file)
    worker.wait("it waits for Postgres")
    assert (is_ready(file), waits_for(file)) == (False, "it waits for Postgres")
    with pytest.raises(LocalError, match="the worker is not ready: it waits for Postgres"):
        check_worker(Settings(ready_file=file))
    worker.show(0.0)
    assert (is_ready(file), waits_for(file)) == (False, "")
    with pytest.raises(LocalError, match=r"the worker is not ready$"):
        check_worker(Settings(ready_file=file))


def test_a_file_that_a_power_loss_left_says_nothing_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the file counts from the machine's start: it may be far behind what the file says."""
    file, boot = tmp_path / "ready", tmp_path / "boot_id"
    monkeypatch.setattr("config.worker_readiness._BOOT_ID", boot)
    boot.write_text("first")
    WorkerReadiness(file).show(60.0)
    assert is_ready(file)
    boot.write_text("second")
    assert (is_ready(file), waits_for(file)) == (False, "")


def test_a_damaged_file_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text("soon")
    assert not is_ready(tmp_path / "ready")


def test_a_file_that_cannot_be_written_is_logged_once_and_ends_no_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerReadiness(tmp_path / "gone" / "ready")
    with caplog.at_level(logging.ERROR):
        worker.show(60.0)
        worker.show(60.0)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["LONGHAUL_READY_FILE"]


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_once_when_the_worker_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if abstract else name)
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        worker = WorkerReadiness()
        for _ in range(2):
            worker.show(60.0)
        for _ in range(2):
            worker.hide()
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"STOPPING=1"
    worker = WorkerReadiness()
    worker.show(60.0)  # Nobody listens.
