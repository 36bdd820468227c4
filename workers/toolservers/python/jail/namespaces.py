"""Our own way to make a sandbox: new namespaces, and a file system of what the plan names and nothing else.

As root no user namespace is needed: the mounts are made by root and never belong to the sandbox, whose processes get
a user id that nothing else has. Anyone else makes a user namespace first, is the only user in it, and mounts there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from config.process import prctl
from workers.toolservers.python.jail import linux

_NEW = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
_STAGES = ("/tmp", "/run", "/mnt", "/var")
"""A folder to build on: hidden in our own mount namespace alone."""
_HOST = "/.host"
_SAFE = linux.MS_NOSUID | linux.MS_NODEV


def enter(plan: dict[str, Any]) -> None:
    """The jailer's part: from here on its children live in new namespaces. Raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    if plan["identity"] is not None:
        linux.unshare(_NEW)
        return
    linux.unshare(linux.CLONE_NEWUSER | _NEW)
    inside = plan["inside_id"]
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def build(plan: dict[str, Any]) -> None:
    """The part of the first process inside: file system, name, rights. Raises OSError."""
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    _new_root()
    for source, target in plan["binds"]:
        _place(target, folder=Path(_HOST + source).is_dir())
        linux.bind_read_only(_HOST + source, target)
    for device in plan["devices"]:
        _place(f"/dev/{device}", folder=False)
        linux.bind_read_only(f"{_HOST}/dev/{device}", f"/dev/{device}", devices=True)
    for path, target in plan["links"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).symlink_to(target)
    for path, text in plan["files"].items():
        _place(path, folder=False)
        Path(path).write_text(text)
    _mount_own(plan)
    linux.unmount(_HOST)
    Path(_HOST).rmdir()
    linux.mount("", "/", "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | _SAFE)
    linux.set_hostname("sandbox")
    _give_up_rights(plan["identity"])


def _new_root() -> None:
    stage = next(path for path in _STAGES if Path(path).is_dir())
    linux.mount("tmpfs", stage, "tmpfs", _SAFE, "mode=755,size=4m,nr_inodes=4096")
    Path(stage + _HOST).mkdir()
    linux.pivot_root(stage, stage + _HOST)
    os.chdir("/")


def _place(path: str, *, folder: bool) -> None:
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir(exist_ok=True) if folder else place.touch()


def _mount_own(plan: dict[str, Any]) -> None:
    """What belongs to the sandbox alone: its /proc, and the one place where it may write."""
    Path("/proc").mkdir()
    Path("/tmp").mkdir()
    linux.mount("proc", "/proc", "proc", _SAFE | linux.MS_NOEXEC, "subset=pid")
    owner = plan["inside_id"] if plan["identity"] is None else plan["identity"]
    room = f"mode=700,uid={owner},gid={owner},size={plan['disk_bytes']},nr_inodes={plan['inodes']}"
    linux.mount("tmpfs", "/tmp", "tmpfs", _SAFE | linux.MS_NOEXEC, room)


def _give_up_rights(identity: int | None) -> None:
    linux.drop_bounding_set()
    prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if identity is not None:
        os.setgroups([])
        os.setresgid(identity, identity, identity)
        os.setresuid(identity, identity, identity)
