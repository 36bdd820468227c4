"""Where the embedded services live, and as whom: nothing is installed on the machine for them.

Postgres refuses to run as root. As root, the services therefore run as a user that exists already, and where
that user cannot get at the data folder (a checkout under a closed home folder) or at the binaries, data and a
copy of the binaries go to a folder of ours in /var/lib. No user is added, no folder of others is opened.
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
    """The unprivileged user that runs the services where we are root."""

    name: str
    uid: int
    gid: int

    @property
    def ids(self) -> str:
        return f"{self.uid}:{self.gid}"


@dataclass(frozen=True, slots=True)
class Quarters:
    """`folder` is ours alone to write; what the services write is in folders of their account inside it."""

    folder: Path
    account: Account | None

    @classmethod
    def of(cls, home: Home) -> Quarters:
        """Chooses account and folder. Raises LocalError where there is no account, or a folder is not safe."""
        account = choose_account()
        if account is None:
            return cls(home.path, None)
        if reachable(home.path.parent):
            home.path.chmod(0o711)
            return cls(home.path, account)
        return cls(_system_folder(home), account)

    @property
    def user(self) -> str | None:
        return self.account.ids if self.account else None

    def room(self, name: str) -> Path:
        """A folder inside, mode 0700, of the account; made where missing. Raises LocalError if it is something else."""
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        owner = self.account.uid if self.account else os.geteuid()
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
            raise LocalError(f"{path} is not a folder of Longhaul's")
        if self.account and found.st_uid != owner:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)
        path.chmod(0o700)
        return path

    def private_file(self, name: str, text: str) -> Path:
        """Writes a file of mode 0600 that only the account reads; replaces an older one."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if self.account:
                os.fchown(descriptor, self.account.uid, self.account.gid)
            file.write(text)
        return path

    def binaries(self, *folders: Path, version: str) -> Path:
        """The folder that holds `folders` (siblings): their own, or a copy that the account can reach."""
        site = folders[0].parent
        if self.account is None or all(reachable(folder) for folder in folders):
            return site
        target = self.folder / f"{folders[0].name}-{version}"
        if not target.exists():
            draft = self.folder / f"{target.name}.{secrets.token_hex(4)}"
            for folder in folders:
                shutil.copytree(folder, draft / folder.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
            _open_to_read(draft)
            draft.rename(target)
        return target


def choose_account() -> Account | None:
    """None where we are not root: then the services run as we do."""
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
    """True where every user may pass through `path` and all folders above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _system_folder(home: Home) -> Path:
    path = SYSTEM_FOLDER / f"longhaul-{home.id}"
    try:
        path.mkdir(mode=0o711, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise LocalError(f"cannot use {path}: {error.strerror}; LONGHAUL_HOME can name an open folder") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LocalError(f"{path} is not a folder of root's alone")
    path.chmod(0o711)
    return path


def _open_to_read(folder: Path) -> None:
    """The copy is for the account to read and run, whatever umask made it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if runs else 0o644)
