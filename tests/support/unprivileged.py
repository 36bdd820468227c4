"""Runs a program as a user that is not root: `python unprivileged.py PROGRAM ARG...`; `command` makes its argv.

Root becomes `nobody` first. Folders that only root can enter (a Python below /root, a closed checkout) are opened for
the program in a mount namespace: nothing changes on the machine.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from pathlib import Path

from config.process import CHECKOUT
from workers.toolservers.python.jail import linux


def command(*program: str) -> list[str]:
    """argv that runs `program` without root's rights. The working directory must be the checkout."""
    return [sys.executable, "-m", "tests.support.unprivileged", *program] if os.geteuid() == 0 else list(program)


def _closed_above(path: Path) -> Path | None:
    """The outermost folder around `path` that other users cannot enter; None if there is none."""
    folders = reversed([path, *path.parents])
    return next((folder for folder in folders if not folder.stat().st_mode & stat.S_IXOTH), None)


def _open_folders(needed: list[Path]) -> None:
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    stage = Path("/mnt")
    linux.mount("tmpfs", str(stage), "tmpfs", 0, "mode=755")
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        if (folder := _closed_above(path)) is not None:
            closed.setdefault(folder, []).append(path)
    for number, path in enumerate(path for paths in closed.values() for path in paths):
        kept = stage / str(number)
        kept.mkdir()
        linux.mount(str(path), str(kept), "", linux.MS_BIND | linux.MS_REC)
    number = 0
    for folder, paths in closed.items():
        linux.mount("tmpfs", str(folder), "tmpfs", 0, "mode=755")
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
            linux.mount(str(stage / str(number)), str(path), "", linux.MS_BIND | linux.MS_REC)
            number += 1


def main() -> None:
    """Drops root's rights and runs the program."""
    _open_folders([CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)])
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
    os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
    os.chdir(CHECKOUT)
    os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, "HOME": "/nonexistent"})


if __name__ == "__main__":
    main()
