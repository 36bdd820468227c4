"""A program that reads what callers sent has nothing that they may want."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.killable.jobs import KillableProgram
from config.process import code_running
from tests.support import nosy_program


async def test_a_job_has_no_environment_no_network_and_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://longhaul:secret@db/longhaul")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = KillableProgram("nosy work", lambda: code_running(nosy_program.__name__))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        async def job() -> AsyncIterator[bytes]:
            yield f"[{listening.getsockname()[1]}, 0]\n".encode()

        try:
            [found], _ = await program.ask(job(), 1, 2**16)
        finally:
            program.close()
    assert found["had"] == []
    assert set(found["environment"]) - {"LC_CTYPE"} <= {
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        *("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH"),
    }
    assert found["environment"]["PYTHONPATH"] == os.environ["PYTHONPATH"]
