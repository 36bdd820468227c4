"""The user that the embedded services run as, and the folders of their data.

Postgres refuses to run as root. If root starts Longhaul, the services run as a user that already exists. That user
may not be able to enter the data folder (a checkout in a closed home folder) or to read the binaries. Then the data
and a copy of the binaries go to a folder in /var/lib. Longhaul adds no user, and opens no folder of other users.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from app.local.errors import LocalError
from app.local.home import Home

SYSTEM_FOLDER = Path("/var/lib")
CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged user that the services of root run as."""

    name: str
    uid: int
    gid: int

    @property
    def ids(self) -> str:
        return f"{self.uid}:{self.gid}"


@dataclass(frozen=True, slots=True)
class ServiceFolders:
    """The folders of the services: `folder` is Longhaul's, and its subfolders belong to `account`."""

    folder: Path
    account: Account | None

    @classmethod
    def choose(cls, home: Home) -> ServiceFolders:
        """Chooses account and folder. Raises LocalError if there is no account, or a folder is not safe."""
        account = choose_account()
        if account is None:
            return cls(home.path, None)
        if reachable(home.path.parent):
            home.path.chmod(0o711)
            return cls(home.path, account)
        return cls(_system_folder(home), account)

    @property
    def user(self) -> str | None:
        """`UID:GID` of the account; None if the services run as this user."""
        return self.account.ids if self.account else None

    def subfolder(self, name: str) -> Path:
        """The account's folder `name`, with mode 0700; made if missing. Raises LocalError if it is no folder."""
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        owner = self.account.uid if self.account else os.geteuid()
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (owner, os.geteuid()):
            raise LocalError(f"{path} is not a folder of Longhaul's")
        if self.account and status.st_uid != owner:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)
        path.chmod(0o700)
        return path

    def private_file(self, name: str, text: str) -> Path:
        """Writes a file of mode 0600 that only the account can read; replaces an older one."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if self.account:
                os.fchown(descriptor, self.account.uid, self.account.gid)
            file.write(text)
        return path

    def binaries(self, *folders: Path, version: str) -> Path:
        """The folder that holds `folders`, which are siblings: the original, or a copy that the account can reach."""
        original = folders[0].parent
        if self.account is None or all(reachable(folder) for folder in folders):
            return original
        target = self.folder / f"{folders[0].name}-{version}"
        if not target.exists():
            draft = self.folder / f"{target.name}.{secrets.token_hex(4)}"
            for folder in folders:
                shutil.copytree(folder, draft / folder.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
            _make_readable(draft)
            draft.rename(target)
        return target


def choose_account() -> Account | None:
    """The account for the services of root; None for other users. Raises LocalError if there is none."""
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise LocalError(
        "as root, Postgres needs another user to run as, and there is neither 'postgres' nor 'nobody': "
        "start Longhaul as an ordinary user, or set DATABASE_URL and REDIS_URL"
    )


def reachable(path: Path) -> bool:
    """Whether every user may enter `path` and all folders above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _system_folder(home: Home) -> Path:
    path = SYSTEM_FOLDER / f"longhaul-{home.id}"
    try:
        path.mkdir(mode=0o711, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise LocalError(f"cannot use {path}: {error.strerror}; LONGHAUL_HOME can name an open folder") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LocalError(f"{path} is not a folder of root's alone")
    path.chmod(0o711)
    return path


def _make_readable(folder: Path) -> None:
    """Lets every user read and run the copy, whatever the umask was."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
