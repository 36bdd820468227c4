"""One server of tools for all tests: what they call is told apart by its text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.tool_servers import ToolProcess, served_tools


@pytest.fixture(scope="package")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolProcess]:
    with served_tools(tmp_path_factory.mktemp("tools")) as running:
        yield running


@pytest.fixture(scope="package")
def broken_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolProcess]:
    """For tests that stop it, and start it again."""
    with served_tools(tmp_path_factory.mktemp("broken")) as running:
        yield running
