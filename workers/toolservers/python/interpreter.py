"""The Python that runs inside: which files it needs, asked from itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from workers.toolservers.python.errors import SandboxError

OLDEST = (3, 11)
ASK_SECONDS = 20

_QUESTION = """
import json, os, sys
prefixes = dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])
print(json.dumps([sys.version_info[:2], sys.executable, list(prefixes), os.path.realpath(sys.executable)]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`executable` as code will see it; `paths` are the files and folders to show at the places they have outside."""

    executable: Path
    real: Path
    """The file that `executable` leads to."""
    paths: tuple[Path, ...]


def default_executable() -> Path:
    """This Python without its virtual environment: Longhaul's packages are no business of strangers' code."""
    return Path(getattr(sys, "_base_executable", "") or sys.executable)


def examine(executable: Path) -> Interpreter:
    """Asks a Python about itself. Raises SandboxError where it does not answer or is too old."""
    try:
        answer = subprocess.run(
            [str(executable), "-I", "-c", _QUESTION], capture_output=True, timeout=ASK_SECONDS, check=True, env={}
        )
        version, shown, prefixes, real = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise SandboxError(f"--python {executable}: is no Python that runs") from None
    if tuple(version) < OLDEST:
        raise SandboxError(f"--python {executable}: must be Python {OLDEST[0]}.{OLDEST[1]} or newer")
    return Interpreter(Path(shown), Path(real), _needed(Path(real), [Path(prefix) for prefix in prefixes]))


def _needed(real: Path, prefixes: list[Path]) -> tuple[Path, ...]:
    wanted = [part for prefix in prefixes for part in (prefix / "lib", prefix / "lib64", prefix / "pyvenv.cfg")]
    return tuple(path for path in dict.fromkeys([*wanted, real]) if path.exists())
