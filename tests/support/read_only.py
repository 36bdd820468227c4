"""A `longhaul` command where all file systems but /proc, /sys and /dev are read-only; tests.support.forks starts it.

That is what a container with a read-only root sees. It happens in a mount namespace, so nothing changes on the machine.
Who is not root gets a user namespace, too, in which they may do so.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from app.cli import main as longhaul
from workers.toolservers.python.jail import linux


def main() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWNS | (linux.CLONE_NEWUSER if uid else 0))
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount = line.split()[4]
        if not mount.startswith(("/proc", "/sys", "/dev")):
            with contextlib.suppress(OSError):  # hidden below another one
                linux.mount("", mount, "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)
    os.environ["HOME"] = "/nonexistent"
    longhaul()
