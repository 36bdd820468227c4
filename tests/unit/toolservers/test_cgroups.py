"""Cgroups of sandboxes, in a folder that stands for cgroupfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.jail import cgroups
from workers.toolservers.python.jail.cgroups import SandboxCgroup, delegated
from workers.toolservers.python.limits import Limits

OWN = "/user.slice/tools.service"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cgroup of two processes of a service."""
    folder = tmp_path / "cgroup"
    (folder / OWN[1:]).mkdir(parents=True)
    (folder / OWN[1:] / "cgroup.procs").write_text("11\n12\n")
    return folder


def own(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "own"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def getxattr(path: object, name: str) -> bytes:
        if name != "user.delegate":
            raise OSError
        return b"1"

    monkeypatch.setattr(os, "getxattr", getxattr)


@pytest.mark.usefixtures("marked")
def test_a_delegated_cgroup_hands_limits_on_and_has_no_processes_of_its_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[tuple[str, str]] = []
    monkeypatch.setattr(Path, "write_text", lambda path, value: moved.append((path.name, value)))
    lines = tmp_path / "own"
    lines.write_bytes(f"4:memory:/x\n0::{OWN}\n".encode())
    assert delegated(root, lines) == root / OWN[1:]
    assert moved == [("cgroup.procs", "11"), ("cgroup.procs", "12"), ("cgroup.subtree_control", "+memory +pids")]
    assert (root / OWN[1:] / "server").is_dir()


def test_a_cgroup_that_nobody_delegated_is_left_alone(root: Path, tmp_path: Path) -> None:
    assert delegated(root, own(tmp_path, f"0::{OWN}")) is None
    assert [path.name for path in (root / OWN[1:]).iterdir()] == ["cgroup.procs"]


@pytest.mark.usefixtures("marked")
def test_version_1_has_no_cgroups_for_sandboxes(root: Path, tmp_path: Path) -> None:
    assert delegated(root, own(tmp_path, "4:memory:/x", "1:name=systemd:/")) is None


@pytest.mark.usefixtures("marked")
def test_a_delegated_cgroup_that_cannot_be_used_is_logged(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / OWN[1:] / "cgroup.procs").unlink()
    assert delegated(root, own(tmp_path, f"0::{OWN}")) is None
    assert caplog.text.endswith("cgroup.procs: No such file or directory\n")


def test_a_sandbox_s_cgroup_has_its_limits_and_its_jailer(tmp_path: Path) -> None:
    (tmp_path / "sandbox-ended").mkdir()
    SandboxCgroup(tmp_path, Limits.model_construct(memory=100, disk=10, processes=4), 77)
    [folder] = tmp_path.iterdir()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "memory.max": str(110 + cgroups.OUTSIDE_BYTES),
        "memory.swap.max": "0",
        "pids.max": str(4 + cgroups.OUTSIDE_PROCESSES),
        "cgroup.procs": "77",
    }


def test_a_sandbox_without_the_cgroup_that_it_should_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"^a sandbox has no cgroup: .*: No such file or directory$"):
        SandboxCgroup(tmp_path / "gone", Limits(), 77)


@pytest.mark.parametrize(("kills", "full"), [(0, False), (1, True)])
def test_the_end_tells_whether_the_kernel_ended_a_process_for_its_memory(
    tmp_path: Path, kills: int, full: bool
) -> None:
    cgroup = SandboxCgroup(tmp_path, Limits(), 77)
    [folder] = tmp_path.iterdir()
    (folder / "memory.events").write_text(f"max 9\noom 1\noom_kill {kills}\noom_group_kill 0\n")
    assert cgroup.end() is full
    assert (folder / "cgroup.kill").read_text() == "1"
