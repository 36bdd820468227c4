"""docs/clients.md has each client with the version that is tested."""

from __future__ import annotations

import json
import re

from config.process import CHECKOUT

PAGE = (CHECKOUT / "docs" / "clients.md").read_text(encoding="utf-8")
TESTS = CHECKOUT / "tests" / "clients"


def rows(heading: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def installed() -> set[str]:
    """Each package that the tests of clients have, with its version."""
    pins = (CHECKOUT / "config" / "requirements" / "dev.txt").read_text(encoding="utf-8")
    node = json.loads((TESTS / "node" / "package.json").read_text(encoding="utf-8"))
    python = re.findall(r"^([\w.-]+)==(\S+)", pins, re.MULTILINE)
    return {
        f"{name} {version}"
        for name, version in [*python, *node["dependencies"].items(), *node["optionalDependencies"].items()]
    }


def test_every_row_has_the_version_that_is_installed() -> None:
    named = {package for row in rows("What works") for package in row[1].split(", ") if package}
    assert named - installed() == set()


def test_every_client_has_its_row_and_its_lines() -> None:
    headings = set(re.findall(r"^### (.+)$", PAGE, re.MULTILINE))
    linked = set(re.findall(r"^\| \[([^\]]+)\]", PAGE, re.MULTILINE))
    assert linked == headings


def test_the_lock_file_has_every_pin_by_hash_and_no_address() -> None:
    """Addresses would tie the tests to one registry."""
    lock = json.loads((TESTS / "node" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    package = json.loads((TESTS / "node" / "package.json").read_text(encoding="utf-8"))
    assert lock.pop("")["dependencies"] == package["dependencies"]
    assert [name for name, entry in lock.items() if "resolved" in entry or "integrity" not in entry] == []
