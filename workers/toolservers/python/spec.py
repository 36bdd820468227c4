"""The inside of a sandbox: the Python that runs there, files, folders, links, and the first program."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.limits import Limits

MIN_VERSION = (3, 11)
EXAMINE_SECONDS = 20

_QUESTION = """
import json, os, sys
prefixes = dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])
print(json.dumps([sys.version_info[:2], sys.executable, list(prefixes), os.path.realpath(sys.executable)]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python. `paths` are the files and folders that it needs; inside they have the same paths as outside."""

    executable: Path
    """The path as code inside sees it."""
    real: Path
    """The file that `executable` links to."""
    paths: tuple[Path, ...]


def default_executable() -> Path:
    """This Python without its virtual environment: untrusted code must not see Longhaul's packages."""
    return Path(getattr(sys, "_base_executable", "") or sys.executable)


def examine(executable: Path) -> Interpreter:
    """Asks a Python for its files. Raises SandboxError if it does not answer or is too old."""
    try:
        answer = subprocess.run(
            [str(executable), "-I", "-c", _QUESTION], capture_output=True, timeout=EXAMINE_SECONDS, check=True, env={}
        )
        version, executable_inside, prefixes, real = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise SandboxError(f"--python {executable}: is no Python that runs") from None
    if tuple(version) < MIN_VERSION:
        raise SandboxError(f"--python {executable}: must be Python {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer")
    return Interpreter(Path(executable_inside), Path(real), _needed(Path(real), [Path(prefix) for prefix in prefixes]))


def _needed(real: Path, prefixes: list[Path]) -> tuple[Path, ...]:
    wanted = [part for prefix in prefixes for part in (prefix / "lib", prefix / "lib64", prefix / "pyvenv.cfg")]
    return tuple(path for path in dict.fromkeys([*wanted, real]) if path.exists())


HOME = "/tmp/home"
USER = "sandbox"
INSIDE_ID = 1000
OWN_FOLDER = "/longhaul"
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("null", "zero", "full", "random", "urandom")
FREE_IDS = range(0x70000000, 0x7FFFFFFE)
"""User ids that no distribution and no systemd assigns."""
MIN_IDS = 10_000
"""Where a user namespace maps fewer ids, root has none to give to a sandbox."""
INODES = 8192

_JAIL = Path(__file__).with_name("jail")


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The common part of all sandboxes of a server."""

    interpreter: Interpreter
    limits: Limits
    syscall_filter: bytes
    cgroups: Path | None = None
    """The folder for the sandboxes' cgroups; None: they have none."""

    def for_jailer(self, descriptors: dict[str, int]) -> dict[str, Any]:
        """The specification of one sandbox, ready for JSON. `descriptors` are the pipes that the jailer inherits."""
        identity = _identity()
        return {
            "parent": os.getpid(),
            "identity": identity,
            "binds": [(str(path.resolve()), str(path)) for path in self._visible_paths()],
            "links": self._links(),
            "devices": DEVICES,
            "files": self._files(descriptors, INSIDE_ID if identity is None else identity),
            "disk_bytes": self.limits.disk,
            "inodes": INODES,
            "memory_bytes": self.limits.memory,
            "descriptors": list(descriptors.values()),
            "inside_id": INSIDE_ID,
            "argv": [str(self.interpreter.executable), "-I", "-S", "-B", f"{OWN_FOLDER}/init.py"],
        }

    def _visible_paths(self) -> list[Path]:
        libraries = [Path(name) for name in LIBRARIES if Path(name).exists() and not Path(name).is_symlink()]
        return _outermost([*libraries, *self.interpreter.paths])

    def _links(self) -> dict[str, str]:
        """Symbolic links inside: path to target."""
        links = {name: str(Path(name).readlink()) for name in LIBRARIES if Path(name).is_symlink()}
        links |= {"/dev/fd": "/proc/self/fd", "/dev/shm": "/tmp/.shm", "/mnt/data": HOME}
        link, real = self.interpreter.executable, self.interpreter.real
        if link != real and not any(link.is_relative_to(path) for path in self._visible_paths()):
            links[str(link)] = str(real)
        return links

    def _files(self, descriptors: dict[str, int], uid: int) -> dict[str, str]:
        inside = {
            "descriptors": descriptors,
            "limits": self.limits.model_dump(),
            "filter": base64.b64encode(self.syscall_filter).decode(),
            "argv": [str(self.interpreter.executable), "-I", "-B", f"{OWN_FOLDER}/kernel.py"],
            "environment": self._environment(),
            "folders": [HOME, "/tmp/.shm"],
        }
        return {
            "/etc/passwd": f"{USER}:x:{uid}:{uid}::{HOME}:/sbin/nologin\n",
            "/etc/group": f"{USER}:x:{uid}:\n",
            "/etc/hosts": "127.0.0.1 localhost\n",
            f"{OWN_FOLDER}/init.json": json.dumps(inside),
            f"{OWN_FOLDER}/init.py": (_JAIL / "init.py").read_text(),
            f"{OWN_FOLDER}/kernel.py": (_JAIL / "kernel.py").read_text(),
        }

    def _environment(self) -> dict[str, str]:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        home = {"HOME": HOME, "USER": USER, "TMPDIR": "/tmp", "MPLCONFIGDIR": "/tmp", "MPLBACKEND": "Agg"}
        return {"PATH": str(self.interpreter.executable.parent), "LANG": "C.UTF-8", **home, **threads}


def _identity() -> int | None:
    """The user id of one sandbox, which nothing else on this machine has; None: the sandbox runs as this user.

    It is None for everybody but root, and for a root whose user namespace maps too few ids, as in some containers.
    """
    if os.geteuid() != 0:
        return None
    extents = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if any(start <= FREE_IDS.start and start + count >= FREE_IDS.stop for start, _, count in extents):
        return secrets.choice(FREE_IDS)
    first, _, count = extents[-1]
    return first + count - 3 - secrets.randbelow(count // 4) if count >= MIN_IDS else None


def _outermost(paths: list[Path]) -> list[Path]:
    """The paths without those inside another one, outermost first."""
    kept: list[Path] = []
    for path in sorted(dict.fromkeys(paths), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept
