"""The rooms of the house (CONTRIBUTING.md): small enough to hold in mind."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.settings import CHECKOUT

MAX_MODULES = 15
PACKAGES = sorted(path.parent for top in ("app", "config", "workers") for path in (CHECKOUT / top).rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=[str(path.relative_to(CHECKOUT)) for path in PACKAGES])
def test_a_package_has_no_more_modules_than_a_reader_holds_in_mind(package: Path) -> None:
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MAX_MODULES
