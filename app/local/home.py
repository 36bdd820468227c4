"""LONGHAUL_HOME: Longhaul's data folder on this machine, and the lock that one start holds."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from app.local.errors import LocalError
from config.settings import Settings

MARKER = "longhaul.id"
_ID = re.compile(r"[0-9a-f]{12}")
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Home:
    """A data folder of Longhaul. Its `id` never changes, even if the folder is moved."""

    path: Path
    id: str

    @classmethod
    def prepare(cls, path: Path) -> Home:
        """Makes the folder, or checks that it is a data folder. Raises LocalError, which names LONGHAUL_HOME."""
        path = path.resolve()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(path)
            return cls(path, _identity(path))
        except FileExistsError:
            raise LocalError(f"LONGHAUL_HOME: {path} is not a folder") from None
        except OSError as error:
            raise LocalError(f"LONGHAUL_HOME: cannot use {error.filename or path}: {error.strerror}") from None

    def flower_auth(self, settings: Settings) -> str:
        """`user:password` of Flower: as configured, or generated once and kept in a file of mode 0600."""
        if settings.flower_auth is not None:
            return settings.flower_auth
        return read_or_create(self.flower_file, lambda: f"longhaul:{secrets.token_urlsafe(12)}")

    @property
    def flower_file(self) -> Path:
        return self.path / "flower-auth"

    @asynccontextmanager
    async def lock(self, max_wait: float, log: Callable[[str], None]) -> AsyncIterator[int]:
        """Locks the folder; yields the descriptor of the locked file, which guardians hold as well.

        Raises LocalError at once if another start is alive. If another start was killed, its guardians are still
        stopping its programs: waits for them, at most `max_wait` seconds.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._acquire(descriptor, max_wait, log)
            yield descriptor
        finally:
            os.close(descriptor)

    async def _acquire(self, descriptor: int, max_wait: float, log: Callable[[str], None]) -> None:
        end = time.monotonic() + max_wait
        logged = False
        while not _try_lock(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if _is_alive(holder):
                raise LocalError(
                    f"Longhaul already runs on {self.path} (process {holder}); "
                    "a second one needs another LONGHAUL_HOME, LONGHAUL_PORT and LONGHAUL_FLOWER_PORT"
                )
            if time.monotonic() > end:
                raise LocalError(f"LONGHAUL_HOME: programs of an earlier start still use {self.path}")
            if not logged:
                log("an earlier Longhaul was killed; waiting for its programs to end")
                logged = True
            await asyncio.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def read_or_create(file: Path, make: Callable[[], str]) -> str:
    """The text of `file` (mode 0600). If several processes call this at once, the first one makes the text."""
    if not file.exists():
        draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        try:
            draft.write_text(make() + "\n", encoding="utf-8")
            os.link(draft, file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return file.read_text(encoding="utf-8").strip()


def _identity(path: Path) -> str:
    identity = read_or_create(path / MARKER, lambda: secrets.token_hex(6))
    if not _ID.fullmatch(identity):
        raise LocalError(f"LONGHAUL_HOME: {path / MARKER} is damaged")
    return identity


def _refuse_foreign(path: Path) -> None:
    if path.stat().st_uid != os.geteuid():
        raise LocalError(f"LONGHAUL_HOME: {path} belongs to another user; name a folder of your own")
    if (path / MARKER).exists():
        return
    if any(not entry.name.startswith(MARKER) for entry in path.iterdir()):
        raise LocalError(f"LONGHAUL_HOME: {path} is not Longhaul's data folder; name a new or an empty folder")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
