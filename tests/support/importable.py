"""Makes `tests` importable in this virtual environment, whatever a process's folder is: workers import their engine."""

from __future__ import annotations

import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = "longhaul_tests.pth"

if __name__ == "__main__":
    Path(sysconfig.get_path("purelib"), FILE).write_text(f"{ROOT}\n", encoding="utf-8")
