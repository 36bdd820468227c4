"""A `longhaul` command where all file systems but /proc, /sys and /dev are read-only; tests.support.forks starts it.

That is what a container with a read-only root sees. It happens in a mount namespace, so nothing changes on the machine.
A user who is not root gets a user namespace, too, in which they may mount.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from app.cli import main as longhaul
from workers.toolservers.python.jail import linux


def main() -> None:
    if user := os.geteuid():
        linux.unshare_as_user(user, linux.CLONE_NEWNS)
    else:
        linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount = line.split()[4]
        if not mount.startswith(("/proc", "/sys", "/dev")):
            _make_read_only(mount)
    os.environ["HOME"] = "/nonexistent"
    longhaul()


def _make_read_only(mount: str) -> None:
    """A mount that is hidden below another one, or out of this user's reach, stays as it is."""
    try:
        locked = os.statvfs(mount).f_flag & (linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        linux.mount("", mount, "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | locked)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
