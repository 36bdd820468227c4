"""Makes the sandbox with new namespaces, and a file system that holds what `spec` names and nothing else.

Root needs no user namespace: root makes the mounts, and the processes of the sandbox get a user id of their own. Other
users make a user namespace first, are the only user in it, and make the mounts there.
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
"""The new root is mounted over the first of these that exists; only the new mount namespace sees that."""
_HOST = "/.host"
_SAFE = linux.MS_NOSUID | linux.MS_NODEV


def enter(spec: dict[str, Any]) -> None:
    """The jailer calls it: its children then live in new namespaces. Raises OSError."""
    if spec["identity"] is not None:
        linux.unshare(_NEW)
    else:
        linux.unshare_as_user(spec["inside_id"], _NEW)


def build(spec: dict[str, Any]) -> None:
    """The first process inside calls it: sets up file system, host name and rights. Raises OSError."""
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    _new_root()
    for source, target in spec["binds"]:
        _make_mount_point(target, folder=Path(_HOST + source).is_dir())
        linux.bind_read_only(_HOST + source, target)
    for device in spec["devices"]:
        _make_mount_point(f"/dev/{device}", folder=False)
        linux.bind_read_only(f"{_HOST}/dev/{device}", f"/dev/{device}", devices=True)
    for path, target in spec["links"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).symlink_to(target)
    for path, text in spec["files"].items():
        _make_mount_point(path, folder=False)
        Path(path).write_text(text)
    _mount_proc_and_tmp(spec)
    linux.unmount(_HOST)
    Path(_HOST).rmdir()
    linux.mount("", "/", "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | _SAFE)
    linux.set_hostname("sandbox")
    _drop_rights(spec["identity"])


def _new_root() -> None:
    stage = next(path for path in _STAGES if Path(path).is_dir())
    linux.mount("tmpfs", stage, "tmpfs", _SAFE, "mode=755,size=4m,nr_inodes=4096")
    Path(stage + _HOST).mkdir()
    linux.pivot_root(stage, stage + _HOST)
    os.chdir("/")


def _make_mount_point(name: str, *, folder: bool) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=True) if folder else path.touch()


def _mount_proc_and_tmp(spec: dict[str, Any]) -> None:
    """Mounts the sandbox's own /proc, and /tmp, the only folder that it can write to."""
    Path("/proc").mkdir()
    Path("/tmp").mkdir()
    linux.mount("proc", "/proc", "proc", _SAFE | linux.MS_NOEXEC, "subset=pid")
    owner = spec["inside_id"] if spec["identity"] is None else spec["identity"]
    options = f"mode=700,uid={owner},gid={owner},size={spec['disk_bytes']},nr_inodes={spec['inodes']}"
    linux.mount("tmpfs", "/tmp", "tmpfs", _SAFE | linux.MS_NOEXEC, options)


def _drop_rights(identity: int | None) -> None:
    linux.drop_bounding_set()
    prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if identity is not None:
        os.setgroups([])
        os.setresgid(identity, identity, identity)
        os.setresuid(identity, identity, identity)
    linux.drop_capabilities()
