"""Makes the sandbox with bubblewrap."""

from __future__ import annotations

import os
from typing import Any


def command(spec: dict[str, Any]) -> list[str]:
    """bwrap with all its arguments. Leaves a descriptor open for each file of `spec`, for bwrap to read."""
    identity = str(spec["inside_id"])
    return [
        *(spec["bubblewrap"], "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--uid", identity, "--gid", identity, "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"),
        *_each("--ro-bind", spec["binds"]),
        *_each("--dev-bind", [(f"/dev/{name}", f"/dev/{name}") for name in spec["devices"]]),
        *_each("--symlink", [(target, path) for path, target in spec["links"].items()]),
        *_each("--ro-bind-data", [(_descriptor_of(text), path) for path, text in spec["files"].items()]),
        *("--proc", "/proc", "--perms", "0700", "--size", str(spec["disk_bytes"]), "--tmpfs", "/tmp"),
        *("--remount-ro", "/", "--chdir", "/", "--", *spec["argv"]),
    ]


def _each(option: str, pairs: list[tuple[str, str]]) -> list[str]:
    return [word for first, second in pairs for word in (option, first, second)]


def _descriptor_of(text: str) -> str:
    """The number of a descriptor that reads `text`."""
    descriptor = os.memfd_create("file", 0)
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return str(descriptor)
