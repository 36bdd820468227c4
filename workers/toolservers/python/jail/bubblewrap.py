"""bubblewrap's way to make the same sandbox."""

from __future__ import annotations

import os
from typing import Any


def command(plan: dict[str, Any]) -> list[str]:
    """bwrap with all its arguments. Leaves a descriptor open for each file of the plan, for bwrap to read."""
    identity = str(plan["inside_id"])
    return [
        *(plan["bubblewrap"], "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--uid", identity, "--gid", identity, "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"),
        *_each("--ro-bind", plan["binds"]),
        *_each("--dev-bind", [(f"/dev/{name}", f"/dev/{name}") for name in plan["devices"]]),
        *_each("--symlink", [(target, path) for path, target in plan["links"].items()]),
        *_each("--ro-bind-data", [(_readable(text), path) for path, text in plan["files"].items()]),
        *("--proc", "/proc", "--perms", "0700", "--size", str(plan["disk_bytes"]), "--tmpfs", "/tmp"),
        *("--remount-ro", "/", "--chdir", "/", "--", *plan["argv"]),
    ]


def _each(option: str, pairs: list[tuple[str, str]]) -> list[str]:
    return [word for first, second in pairs for word in (option, first, second)]


def _readable(text: str) -> str:
    """The number of a descriptor from which `text` can be read."""
    descriptor = os.memfd_create("file", 0)
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return str(descriptor)
