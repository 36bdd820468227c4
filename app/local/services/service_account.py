"""The user that the embedded services run as, and the folders of their data.

Postgres refuses to run as root. If root starts Longhaul, the services run as `longhaul` or `postgres`, whichever
exists; if there is neither, Longhaul adds the system user `longhaul`. Never as `nobody`, whose processes others start.
That user may not be able to enter the data folder (a checkout in a closed home folder) or to read the binaries. Then
the data and a copy of the binaries go to a folder in /var/lib. Longhaul opens no folder of other users.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from app.local.errors import LocalError
from app.local.home import Home, write_private

SYSTEM_FOLDER = Path("/var/lib")
DEDICATED = "longhaul"
CANDIDATES = (DEDICATED, "postgres")
KEPT_VARIABLES = ("PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""Variables that the services get of the environment: they need no tokens and URLs."""


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged user that the services of root run as."""

    name: str
    uid: int
    gid: int

    @property
    def ids(self) -> str:
        return f"{self.uid}:{self.gid}"


def package_folder(package: str, variable: str) -> Path:
    """The folder of an installed package with a server. Raises LocalError; `variable` names another one."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise LocalError(f"the package {package} is not installed: set {variable}, or run `make install`")
    return Path(spec.origin).resolve().parent


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
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {owner, os.geteuid()}:
            help_text = f"; if an earlier start made it: chown -R {self.account.ids} {path}" if self.account else ""
            raise LocalError(f"{path} is not a folder of Longhaul's{help_text}")
        if self.account and status.st_uid != owner:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)
        path.chmod(0o700)
        return path

    def private_file(self, name: str, text: str) -> Path:
        """Writes a file of mode 0600 that only the account can read; replaces an older one."""
        owner = (self.account.uid, self.account.gid) if self.account else None
        return write_private(self.folder / name, text, owner)

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
        if (account := _account(name)) is not None:
            return account
    return _add_account()


def _account(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid) if entry.pw_uid != 0 else None


def _add_account() -> Account:
    """Adds the system user DEDICATED, which cannot log in. Raises LocalError."""
    reason = "there is no useradd"
    if (useradd := shutil.which("useradd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")) is not None:
        options = ("--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent")
        command = [useradd, *options, "--shell", "/usr/sbin/nologin", DEDICATED]
        added = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if (account := _account(DEDICATED)) is not None:
            return account
        reason = added.stderr.strip() or f"useradd ended with status {added.returncode}"
    raise LocalError(
        f"as root, Postgres needs another user to run as, and {DEDICATED!r} cannot be added ({reason}): add it, "
        "start Longhaul as an ordinary user, or set DATABASE_URL and REDIS_URL"
    )


def service_environment() -> dict[str, str]:
    """The whole environment of the services."""
    return {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {"LC_ALL": "C"}


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
