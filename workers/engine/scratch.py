"""A folder for the temporary files of one engine, removed with it.

A process that is killed leaves its folder behind. The next process on the machine that opens a folder removes it: the
kernel releases a lock when its holder dies, so a folder without a held lock is abandoned.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "longhaul-engine-"
_LOCK = "lock"
_UNLOCKED = "new"
"""Name of the lock file until its lock is held."""


class Scratch:
    """One folder; it exists from `open` to `remove`."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock: IO[str] | None = None

    def open(self) -> Path:
        """Makes the folder, which only this user can read."""
        _remove_abandoned(Path(tempfile.gettempdir()))
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = (self._path / _UNLOCKED).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self._path / _UNLOCKED).rename(self._path / _LOCK)
        return self._path

    def remove(self) -> None:
        """May be called twice, and before `open`."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
        self._path = self._lock = None


def _remove_abandoned(folder: Path) -> None:
    """Removes the folders of dead processes. A folder without a lock file is about to get one."""
    for lock in folder.glob(f"{PREFIX}*/{_LOCK}"):
        with (
            suppress(OSError),
            lock.open("r+") as file,
        ):  # the lock is held, belongs to another user, or was just removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
