"""The Python that runs inside, and the files that it needs; it is asked for them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from workers.toolservers.python.errors import SandboxError

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
