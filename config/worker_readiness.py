"""Whether a worker can take responses, for probes outside of its process: a file, and systemd's notifications.

The file holds the moment until which the worker's lease lasts, or what the worker waits for before it has one. So a
worker that hangs, is frozen or was killed stops being ready when other workers may take its responses, and no probe has
to ask Postgres.

The moment is one of the clock that counts from the machine's start, so the start's id stands beside it: after a power
loss, a file that was left would count as long as the machine had run before.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("longhaul.worker")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

PART_DIED = os.EX_TEMPFAIL
"""Exit code of a worker that was ready until its engine or its background work died: another start helps."""


class WorkerReadiness:
    """Says that this worker is ready, while its lease lasts and until it drains. From any thread; never raises."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._shown = self._hidden = self._failed = False
        self._paused = ""
        self._lock = threading.Lock()

    def show(self, seconds: float) -> None:
        """The worker is ready for so many seconds from now."""
        with self._lock:
            if not self._hidden and not self._paused:
                self._write(f"{time.monotonic() + seconds} {_boot_id()}\n")
                if not self._shown:
                    _notify("READY=1")
                self._shown = True

    def wait(self, reason: str) -> None:
        """The worker is not ready yet, and why; one line."""
        with self._lock:
            if not self._hidden:
                self._write(f"{reason}\n")
                _notify(f"STATUS={reason}")

    def pause(self, reason: str) -> None:
        """Why the worker is not ready for now, whatever `show` says. With "" the next `show` counts again."""
        with self._lock:
            self._paused = reason
        if reason:
            self.wait(reason)

    def hide(self) -> None:
        """The worker stops: it is not ready any more, whatever `show` says."""
        with self._lock:
            if not self._hidden:
                self._hidden = True
                _notify("STOPPING=1")
                if self._file is not None:
                    with suppress(OSError):
                        self._file.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            draft = self._file.with_name(f"{self._file.name}.new")
            draft.write_text(text)
            draft.replace(self._file)
        except OSError as error:
            if not self._failed:
                log.error("LONGHAUL_READY_FILE: cannot write %s: %s", self._file, error.strerror)
            self._failed = True
        else:
            self._failed = False


def is_ready(file: Path) -> bool:
    """Whether the worker that writes `file` is ready now."""
    found = _lease_in(_text_of(file))
    return found is not None and found[1] == _boot_id() and time.monotonic() < found[0]


def waits_for(file: Path) -> str:
    """The reason that the worker that writes `file` gives for its wait; "" if it gives none."""
    said = _text_of(file)
    return "" if _lease_in(said) is not None else said


def _text_of(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""


def _lease_in(text: str) -> tuple[float, str] | None:
    """The end of the lease, and the start of the machine to which it belongs; None: the text says something else."""
    moment, _, boot = text.partition(" ")
    try:
        return float(moment), boot
    except ValueError:
        return None


def _boot_id() -> str:
    """An id of this start of the machine; empty where no kernel gives one."""
    return _text_of(_BOOT_ID)


def _notify(state: str) -> None:
    """sd_notify(3), in a unit of `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.setblocking(False)
            notifying.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
