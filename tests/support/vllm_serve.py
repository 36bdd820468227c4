"""`vllm serve` with its token route: the real server, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import httpx
import psutil

from app.local.ports import free_port
from config.models import ServedModel
from config.settings import CHECKOUT
from tests.bench.contenders.peer import ENVIRONMENT, as_vllm, flags
from tests.support.longhaul import send_all
from tests.support.waiting import until_sync

HOST = "127.0.0.1"
READY_SECONDS = 400.0
FOLDER = CHECKOUT / "workers" / "engine" / "vllm" / "compat" / "plugin"
"""The folder of the logits processor."""


class VllmServe:
    """A server for `model`, under the name `demo`. Start it, kill it, start it again: its URL stays."""

    def __init__(self, folder: Path, model: ServedModel) -> None:
        self._folder = folder
        self._model = model
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self, *, can_force: bool = True) -> None:
        """Returns when it is ready."""
        args = {"served_model_name": "demo", "max_model_len": self._model.context_length, **self._model.engine_args}
        argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", self._model.path, *flags(args)]
        argv += ["--host", HOST, "--port", str(self._port), "--enable-scale-out", "--disable-uvicorn-access-log"]
        argv += ["--default-chat-template-kwargs", json.dumps(dict(self._model.chat_template_args))]
        argv += ["--logits-processors", "longhaul_forcing:ForcedPrefix"] if can_force else []
        env = {**os.environ, **ENVIRONMENT, "HF_HUB_OFFLINE": "1", **as_vllm(self._folder)}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FOLDER), env.get("PYTHONPATH")]))
        with (self._folder / "vllm.log").open("ab") as log:
            self._process = subprocess.Popen(argv, env=env, cwd=self._folder, stdout=log, stderr=log)
        until_sync(self._is_ready, READY_SECONDS, f"vllm serve is ready (see {self._folder})", pause=0.25)

    def _is_ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._folder / "vllm.log").read_text()[
            -3000:
        ]
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL to it and its engine."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        with_engine = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        send_all(with_engine, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(with_engine, timeout=10)

    def __enter__(self) -> VllmServe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
