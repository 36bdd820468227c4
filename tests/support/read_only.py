"""Runs a program, `python read_only.py PROGRAM ARG...`, where all file systems but /proc, /sys and /dev are read-only.

That is what a container with a read-only root sees. It happens in a mount namespace, so nothing changes on the machine.
Only root may do so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from workers.toolservers.python.jail import linux


def command(*program: str) -> list[str]:
    """argv that runs `program` there. The working directory must be the checkout."""
    return [sys.executable, "-m", "tests.support.read_only", *program]


def main() -> None:
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount = line.split()[4]
        if not mount.startswith(("/proc", "/sys", "/dev")):
            with contextlib.suppress(OSError):  # hidden below another one
                linux.mount("", mount, "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)
    os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, "HOME": "/nonexistent"})


if __name__ == "__main__":
    main()
