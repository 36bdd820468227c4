"""LONGHAUL_HOME: Longhaul's data folder on this machine, and the lock that one start holds."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.local.errors import LocalError
from config.settings import Settings

MARKER = "longhaul.id"
ADMIN_KEY_FILE = "admin-key"
LOCK_FILE = "lock"
"""Locked while `longhaul up` runs."""
SERVICES_FILE = "services"
"""The URLs of the services of a running `longhaul up`, and of its API."""
API_LINE = "LONGHAUL_URL"
WORKERS_FILE = "workers"
"""The workers of a running `longhaul up`: name, model and devices of each."""
SCRAPES_FILE = "metrics.json"
"""Where `/metrics` of its processes is, for Prometheus' `file_sd_configs`."""
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

    @property
    def admin_key_file(self) -> Path:
        """The first admin key, if it was made here."""
        return self.path / ADMIN_KEY_FILE

    def keep_admin_key(self, secret: str) -> None:
        """Raises LocalError."""
        write_private(self.admin_key_file, f"{secret}\n")

    @contextmanager
    def showing_services(self, urls: Mapping[str, str]) -> Iterator[None]:
        """Tells other commands on this machine where the services run, until the block ends. Raises LocalError."""
        file = self.path / SERVICES_FILE
        write_private(file, "".join(f"{name}={url}\n" for name, url in urls.items()))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            (self.path / WORKERS_FILE).unlink(missing_ok=True)
            (self.path / SCRAPES_FILE).unlink(missing_ok=True)

    def show_workers(self, workers: Iterable[tuple[str, str, str]]) -> None:
        """Tells other commands on this machine which workers run: name, model and devices. Raises LocalError."""
        write_private(self.path / WORKERS_FILE, "".join("\t".join(worker) + "\n" for worker in workers))

    def show_scrapes(self, targets: Mapping[str, Sequence[str]]) -> None:
        """Tells Prometheus which addresses each process serves metrics at. Raises LocalError."""
        found = [{"targets": list(each), "labels": {"process": name}} for name, each in targets.items()]
        write_private(self.path / SCRAPES_FILE, json.dumps(found, indent=2) + "\n")

    @asynccontextmanager
    async def lock(self, max_wait: float, log: Callable[[str], None]) -> AsyncIterator[int]:
        """Locks the folder; yields the descriptor of the locked file, which programs hold as well.

        Raises LocalError at once if another start is alive. If another start was killed, its programs are still
        stopping: waits for them, at most `max_wait` seconds.
        """
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def where_first_key_lies(settings: Settings) -> str:
    """Says where the key lies. It makes no folder."""
    if settings.admin_key is not None:
        return "the one in LONGHAUL_ADMIN_KEY"
    file = settings.home.resolve() / ADMIN_KEY_FILE
    return str(file) if file.exists() else "it was not made in this LONGHAUL_HOME"


def first_key(settings: Settings) -> str | None:
    """The first admin key, if it is still where it was put."""
    if settings.admin_key is not None:
        return settings.admin_key
    try:
        return (settings.home / ADMIN_KEY_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def with_running_services(settings: Settings) -> Settings:
    """Returns the settings with the URLs of the services that `longhaul up` runs here, as far as none are set."""
    urls = _running_services(settings)
    found = {"database_url": urls.get("DATABASE_URL"), "redis_url": urls.get("REDIS_URL")}
    return settings.model_copy(update={name: url for name, url in found.items() if getattr(settings, name) is None})


def running_api(settings: Settings) -> str | None:
    """The URL of the API that `longhaul up` runs here; None if it does not run."""
    return _running_services(settings).get(API_LINE)


def _running_services(settings: Settings) -> dict[str, str]:
    return dict(line.split("=", 1) for line in _lines_of_up(settings, SERVICES_FILE) if "=" in line)


def running_workers(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, model and devices of each worker that `longhaul up` runs here; none if it does not run."""
    lines = _lines_of_up(settings, WORKERS_FILE)
    return [(name, model, devices) for name, model, devices in (line.split("\t") for line in lines)]


def running_scrapes(settings: Settings) -> list[int]:
    """The ports of `/metrics` of what `longhaul up` runs here; none if it does not run."""
    found = json.loads("\n".join(_lines_of_up(settings, SCRAPES_FILE)) or "[]")
    return [int(target.rpartition(":")[2]) for each in found for target in each["targets"]]


def _lines_of_up(settings: Settings, name: str) -> list[str]:
    """The lines of a file of a running `longhaul up`, which holds the lock: its files outlive a kill."""
    try:
        with (settings.home / LOCK_FILE).open("rb") as lock:
            if _try_lock(lock.fileno()):
                return []
        return (settings.home / name).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def write_private(file: Path, text: str, owner: tuple[int, int] | None = None) -> Path:
    """Writes a file of mode 0600, whole or not at all; replaces an older one. Raises LocalError.

    `owner` is the user and the group that it is for; None: this process' own.
    """
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            if owner is not None:
                os.fchown(descriptor, *owner)
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        return draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise LocalError(f"cannot write {file}: {error.strerror}") from None


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
        raise LocalError(f"LONGHAUL_HOME: {path} belongs to another user; name a new folder, such as {path}/longhaul")
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
