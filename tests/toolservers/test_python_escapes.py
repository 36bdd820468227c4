"""Untrusted code does not escape, for any user of the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.python_server import PythonServer, python_server
from tests.toolservers.escapes import ESCAPES, OPTIONS, attempts, seconds_for, wrong_with

Servers = dict[str, PythonServer]
"""Servers by the deadline of their calls."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="by-root", marks=[pytest.mark.root, pytest.mark.long]),
        pytest.param(True, id="by-nobody"),
    ],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("python")
    with ExitStack() as stack:
        running = {}
        for seconds in {seconds_for(escape) for escape in ESCAPES}:
            server = python_server(folder / seconds, *OPTIONS, "--seconds", seconds, as_nobody=request.param)
            running[seconds] = stack.enter_context(server)
        yield running


def test_the_server_runs_as_the_user_of_the_test(servers: Servers, request: pytest.FixtureRequest) -> None:
    by_root = "by-root" in request.node.name
    for server in servers.values():
        uid = Path(f"/proc/{server.process.pid}").stat().st_uid
        assert (uid == 0) is (by_root and os.geteuid() == 0)


@pytest.mark.parametrize("area", dict.fromkeys(escape.area for escape in ESCAPES))
async def test_no_attempt_escapes(servers: Servers, area: str, tmp_path: Path) -> None:
    for seconds, server in servers.items():
        wanted = [e for e in ESCAPES if (e.area, seconds_for(e)) == (area, seconds)]
        tried = await attempts(server, wanted, tmp_path)
        assert len(tried) == len(wanted)
        assert [wrong for escape, ran in tried if (wrong := wrong_with(escape, ran))] == []
        assert server.process.poll() is None
