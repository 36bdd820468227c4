"""One version, wherever it is written."""

from __future__ import annotations

import tomllib
from pathlib import Path

from app.main import VERSION

ROOT = Path(__file__).resolve().parents[2]


def test_the_api_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION
