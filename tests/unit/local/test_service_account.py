"""The user that the services of root run as."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from app.local.errors import LocalError
from app.local.services import service_account
from app.local.services.service_account import Account, ServiceFolders, choose_account, service_environment


def entry(name: str, uid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


class Machine:
    """The users of a machine where root runs this; useradd adds one, or fails."""

    def __init__(self, *users: str, useradd: str = "works") -> None:
        self.users = {name: entry(name, 900 + number) for number, name in enumerate(users)}
        self.useradd = useradd
        self.added: list[str] = []

    def run(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.added.append(command[-1])
        if self.useradd != "works":
            return subprocess.CompletedProcess(command, 1, "", f"useradd: {self.useradd}\n")
        self.users[command[-1]] = entry(command[-1], 999)
        return subprocess.CompletedProcess(command, 0, "", "")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Machine:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(pwd, "getpwnam", lambda name: self.users[name])
        monkeypatch.setattr(service_account.shutil, "which", lambda *_, **__: "/usr/sbin/useradd")
        monkeypatch.setattr(subprocess, "run", self.run)
        return self


@pytest.mark.parametrize(
    ("users", "chosen"), [(("nobody", "postgres"), "postgres"), (("postgres", "longhaul"), "longhaul")]
)
def test_an_account_that_exists_is_used(monkeypatch: pytest.MonkeyPatch, users: tuple[str, ...], chosen: str) -> None:
    machine = Machine(*users).install(monkeypatch)
    account = choose_account()
    assert account is not None
    assert account.name == chosen
    assert machine.added == []


def test_longhaul_s_own_account_is_added_rather_than_nobody_used(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("nobody").install(monkeypatch)
    assert choose_account() == Account("longhaul", 999, 999)
    assert machine.added == ["longhaul"]


def test_an_account_that_cannot_be_added_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine("nobody", useradd="cannot lock /etc/passwd").install(monkeypatch)
    with pytest.raises(LocalError, match=r"'longhaul' cannot be added \(useradd: cannot lock /etc/passwd\): add it, "):
        choose_account()


def test_other_users_need_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_account() is None


def test_services_see_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hunter2@db/x")
    assert "hunter2" not in str(service_environment())
    assert service_environment()["PATH"] == os.environ["PATH"]


@pytest.mark.root
def test_as_root_a_folder_of_another_account_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "valkey").mkdir()
    os.chown(tmp_path / "valkey", 54321, 54321)
    with pytest.raises(LocalError, match=f"chown -R 12345:12345 {tmp_path}/valkey"):
        ServiceFolders(tmp_path, Account("someone", 12345, 12345)).subfolder("valkey")
    assert (tmp_path / "valkey").stat().st_uid == 54321
