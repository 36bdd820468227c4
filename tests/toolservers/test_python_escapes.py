"""Untrusted code does not escape, for any user of the server."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.support.python_server import python_server
from tests.toolservers.escapes import ESCAPES, OPTIONS, attempts, seconds_for, wrong_with


@pytest.mark.parametrize(
    "as_nobody",
    [pytest.param(False, id="by-root", marks=[pytest.mark.root, pytest.mark.long]), pytest.param(True, id="by-nobody")],
)
@pytest.mark.parametrize("seconds", sorted({seconds_for(escape) for escape in ESCAPES}))
async def test_no_attempt_escapes(as_nobody: bool, seconds: str, tmp_path: Path) -> None:
    """One server for the attempts of each deadline."""
    wanted = [escape for escape in ESCAPES if seconds_for(escape) == seconds]
    with python_server(tmp_path / "log", *OPTIONS, "--seconds", seconds, as_nobody=as_nobody) as server:
        uid = psutil.Process(server.process.pid).uids().effective
        assert (uid == 0) is (os.geteuid() == 0 and not as_nobody)
        tried = await attempts(server, wanted, tmp_path)
        assert [wrong for escape, ran in tried if (wrong := wrong_with(escape, ran))] == []
        assert len(tried) == len(wanted)
        assert server.process.poll() is None
