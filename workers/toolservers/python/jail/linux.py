"""System calls of Linux that Python 3.11 has no function for."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from config.process import prctl

# sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# sys/mount.h
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_RDONLY = 1
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

# linux/mount.h, linux/fcntl.h
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2
_MOUNT_ATTR_NODEV = 4
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_SYS_MOUNT_SETATTR = 442  # on every machine
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

# linux/prctl.h
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
LAST_CAPABILITY = 63

_CAPABILITY_VERSION = 0x20080522  # linux/capability.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.sethostname.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Moves this process into new namespaces; a new process namespace holds its children. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def unshare_as_user(inside: int, flags: int) -> None:
    """Moves this process into new namespaces and a new user namespace that has it alone, as user and group `inside`.

    Raises OSError.
    """
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()), f"mount {target}")


def bind_read_only(source: str, target: str, *, devices: bool = False) -> None:
    """Shows `source` and everything below it at `target`, read-only, without set-uid bits and device files.

    With `devices`, device files work. Raises OSError.
    """
    mount(source, target, "", MS_BIND | MS_REC)
    attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | (0 if devices else _MOUNT_ATTR_NODEV)
    mount_attributes = (ctypes.c_uint64 * 4)(attributes, 0, MS_PRIVATE, 0)  # struct mount_attr
    path = ctypes.c_char_p(target.encode())
    size = ctypes.c_size_t(ctypes.sizeof(mount_attributes))
    _check(
        _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, ctypes.byref(mount_attributes), size),
        f"mount_setattr {target}",
    )


def unmount(target: str) -> None:
    """Unmounts `target`, as soon as it is not in use. Raises OSError."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2). Raises OSError."""
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(number, ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode())), "pivot_root")


def set_hostname(name: str) -> None:
    """Sets the host name of the current namespace. Raises OSError."""
    _check(_libc.sethostname(name.encode(), len(name.encode())), "sethostname")


def drop_capabilities() -> None:
    """Drops the effective, permitted and inheritable capabilities, and so the ambient ones. Raises OSError."""
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(head), ctypes.byref(none)), "capset")


def drop_bounding_set() -> None:
    """Makes sure that no program run from here on gets a capability, whatever its file says. Raises OSError."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: this kernel does not have the capability
                raise
