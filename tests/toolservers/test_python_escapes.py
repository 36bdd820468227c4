"""Untrusted code does not escape, for any user of the server and any kind of isolation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.python_server import PythonServer, python_server
from tests.toolservers.escapes import ESCAPES, OPTIONS, attempts, seconds_for, wrong_with

NO_COUNT_OF_FILES = "a million files"
"""bubblewrap cannot limit the number of files; the size of the folder ends this attempt later."""


Servers = dict[str, PythonServer]
"""Servers by the deadline of their calls."""


# bubblewrap is optional; if it is installed, it must isolate as well (.ci/run installs it).
BUBBLEWRAP = [pytest.param(("bwrap", True), id="bubblewrap", marks=pytest.mark.long)] if shutil.which("bwrap") else []


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("namespaces", False), id="namespaces-by-root", marks=[pytest.mark.root, pytest.mark.long]),
        pytest.param(("namespaces", True), id="namespaces-by-nobody"),
        *BUBBLEWRAP,
    ],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    isolation, as_nobody = request.param
    folder = tmp_path_factory.mktemp("python")
    with ExitStack() as stack:
        running = {}
        for seconds in {seconds_for(escape) for escape in ESCAPES}:
            options = (*OPTIONS, "--isolation", isolation, "--seconds", seconds)
            running[seconds] = stack.enter_context(python_server(folder / seconds, *options, as_nobody=as_nobody))
        yield running


def test_the_server_runs_as_the_user_of_the_test(servers: Servers, request: pytest.FixtureRequest) -> None:
    by_root = "by-root" in request.node.name
    for server in servers.values():
        uid = Path(f"/proc/{server.process.pid}").stat().st_uid
        assert (uid == 0) is (by_root and os.geteuid() == 0)


@pytest.mark.parametrize("area", dict.fromkeys(escape.area for escape in ESCAPES))
async def test_no_attempt_escapes(servers: Servers, area: str, tmp_path: Path) -> None:
    for seconds, server in servers.items():
        uncounted = NO_COUNT_OF_FILES if "(bwrap)" in server.log.read_text() else ""
        wanted = [e for e in ESCAPES if (e.area, seconds_for(e)) == (area, seconds) and e.attempt != uncounted]
        tried = await attempts(server, wanted, tmp_path)
        assert len(tried) == len(wanted)
        assert [wrong for escape, ran in tried if (wrong := wrong_with(escape, ran))] == []
        assert server.process.poll() is None
