"""The Procfile under another process manager (honcho), with services that the environment names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from openai import OpenAI

from app.local.ports import free_port
from tests.support.services import Services
from tests.support.waiting import until_sync

CHECKOUT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent


def test_honcho_runs_the_procfile(services: Services, scripted_models: Path, folder: Path) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "DATABASE_URL": services.owner_url,
        "REDIS_URL": services.redis_url.removesuffix("/0") + "/9",
        "LONGHAUL_HOME": str(folder / "home"),
        "LONGHAUL_MODELS": str(scripted_models),
        "LONGHAUL_PORT": str(port),
        "LONGHAUL_FLOWER_PORT": str(free_port()),
    }
    with (folder / "log").open("wb") as log:
        honcho = subprocess.Popen(
            [str(BIN / "honcho"), "start"],
            cwd=CHECKOUT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def ready() -> bool:
        assert honcho.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health/ready?model=scripted", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until_sync(ready, 90, "everything is ready")
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused") as client:
            assert client.responses.create(model="scripted", input="/say hello").output_text == "hello"
        honcho.send_signal(signal.SIGTERM)
        honcho.wait(60)
    finally:
        if honcho.poll() is None:
            os.killpg(honcho.pid, signal.SIGKILL)
            honcho.wait()
