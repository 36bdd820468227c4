"""A folder for the temporary files of one engine, gone with it.

A process that is killed leaves its folder behind; the next one to open a folder on the machine removes
it. A lock, which the kernel lets go of when its holder dies, tells a dead folder from a living one.
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


class Scratch:
    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock: IO[str] | None = None

    def open(self) -> Path:
        """Makes the folder, for this user alone."""
        _sweep(Path(tempfile.gettempdir()))
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = (self._path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self._path

    def remove(self) -> None:
        """May be called twice, and before `open`."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
        self._path = self._lock = None


def _sweep(folder: Path) -> None:
    """Removes what dead processes left. A folder without a lock is about to get one."""
    for lock in folder.glob(f"{PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("r+") as file:  # held, another user's, or just removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
