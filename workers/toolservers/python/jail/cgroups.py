"""A cgroup for each sandbox, if systemd delegated one to this server (`Delegate=memory pids`).

The jailer looks at processes, some times a second. A cgroup counts at every moment, and pipes, sockets and files too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.limits import Limits

log = logging.getLogger("longhaul.tools.python")

_MARKS = ("user.delegate", "trusted.delegate")
"""Extended attributes that systemd sets to 1 on a cgroup that it delegates."""
OUTSIDE_BYTES, OUTSIDE_PROCESSES = 64 * 1024**2, 8
"""The limits are larger by this, for the jailer, which is in the cgroup too."""


def delegated(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The folder of this server's cgroup, ready to have others below it; None if it was not delegated.

    The server moves into a cgroup of its own below it: Linux allows processes only where no limits are handed on.
    """
    paths = [line.removeprefix("0::/") for line in own.read_text().splitlines() if line.startswith("0::/")]
    if not paths or not _is_marked(folder := root / paths[0]):
        return None
    try:
        (server := folder / "server").mkdir(exist_ok=True)
        for process in (folder / "cgroup.procs").read_text().split():
            (server / "cgroup.procs").write_text(process)
        (folder / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError as error:
        log.warning("the delegated cgroup is not used: %s: %s", error.filename, error.strerror)
        return None
    return folder


def _is_marked(folder: Path) -> bool:
    for name in _MARKS:
        with contextlib.suppress(OSError):
            return os.getxattr(folder, name) == b"1"
    return False


class SandboxCgroup:
    """The cgroup of one sandbox. Raises SandboxError if it cannot be made."""

    def __init__(self, parent: Path, limits: Limits, jailer: int) -> None:
        """`jailer` is the id of a process that has started nothing yet; what it starts will be in the cgroup."""
        self._folder = parent / f"sandbox-{secrets.token_hex(8)}"
        try:
            for ended in parent.glob("sandbox-*"):  # whose last process was not quite gone when it was removed
                _remove(ended)
            self._folder.mkdir()
            self._set("memory.max", limits.memory + limits.disk + OUTSIDE_BYTES)
            self._set("pids.max", limits.processes + OUTSIDE_PROCESSES)
            with contextlib.suppress(OSError):  # a kernel without swap
                self._set("memory.swap.max", 0)
            self._set("cgroup.procs", jailer)
        except OSError as error:
            _remove(self._folder)
            raise SandboxError(f"a sandbox has no cgroup: {error.filename}: {error.strerror}") from None

    def end(self) -> bool:
        """Ends what is left in it, and removes it; returns whether the kernel ended a process for its memory."""
        full = False
        with contextlib.suppress(OSError):
            full = "\noom_kill 0\n" not in f"\n{(self._folder / 'memory.events').read_text()}"
            self._set("cgroup.kill", 1)
        _remove(self._folder)
        return full

    def _set(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value))


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
