"""One version, wherever it is read."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

from typer.testing import CliRunner

from app.cli import cli
from config.process import CHECKOUT


def test_the_installed_version_is_that_of_the_project() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version("longhaul-server") == project["version"], (
        "run `make install`: the version was installed before it changed"
    )


def test_the_command_tells_the_version() -> None:
    shown = CliRunner().invoke(cli, ["--version"])
    assert (shown.exit_code, shown.stdout.strip()) == (0, version("longhaul-server"))
