"""`vllm run-batch`: a process that starts an engine, runs one file of chat completions, and ends.

vLLM opens its file once its engine is ready, and writes the results when all requests have ended. The file is a named
pipe, so the bench knows that moment and waits with the requests until then: neither the start of the engine nor its end
is measured.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import orjson

from tests.bench.client.tally import Tally
from tests.bench.contenders.base import Contender
from tests.bench.contenders.models import NAME, Served
from tests.bench.contenders.peer import arguments, command, environment
from tests.bench.load import Figures, Load, Mode
from tests.bench.measurement import Go
from tests.bench.processes import Role

ENDPOINT = "/v1/chat/completions"
"""Of every line. `vllm run-batch` has no Responses API."""


def batch_file(load: Load, *, is_spread: bool = False) -> bytes:
    """The requests of a load as a file for a batch.

    If that `is_spread`, their lengths differ, as those of real work do, and are the load's in the mean.
    """
    params = {name: value for name, value in load.body.items() if name != "max_output_tokens"}
    body = {"model": NAME, "messages": [{"role": "user", "content": load.prompt}], **params}
    random, mean = Random(1), load.body["max_output_tokens"]

    def line(number: int) -> bytes:
        tokens = {"max_completion_tokens": random.randint(1, 2 * mean) if is_spread else mean}
        return (
            orjson.dumps({"custom_id": str(number), "method": "POST", "url": ENDPOINT, "body": body | tokens}) + b"\n"
        )

    return b"".join(map(line, range(load.requests)))


class RunBatch(Contender):
    modes = frozenset({Mode.FIRE})

    def __init__(self, name: str, folder: Path, served: Served) -> None:
        super().__init__(name, folder)
        self._model = served.write(folder / f"{name}.toml")

    async def start(self) -> None:
        """Nothing runs but with a load."""

    @asynccontextmanager
    async def client(self, load: Load) -> AsyncIterator[Go]:
        with TemporaryDirectory(dir=self.folder) as folder:
            file, results = Path(folder) / "file.jsonl", Path(folder) / "results.jsonl"
            os.mkfifo(file)
            files = ("-i", str(file), "-o", str(results), "--model", self._model.path)
            argv = command("run-batch", *files, *arguments(self._model))
            try:
                await self.launch(Role.API, argv, environment(self._model, self.folder), self.folder)
                pipe = await self.ready(Role.API, partial(_writer, file))
                assert pipe is not None
                yield partial(self._run, pipe, batch_file(load), results)
            finally:
                await self.end(Role.API)

    async def _run(self, pipe: BinaryIO, file: bytes, results: Path) -> Figures:
        begun, lines = time.perf_counter(), file.count(b"\n")
        await asyncio.to_thread(_write, pipe, file)
        written = await self.ready(Role.API, partial(_complete, results, lines))
        return _tally(written).figures(time.perf_counter() - begun, 0.0, realtime=False)


def _writer(pipe: Path) -> BinaryIO | None:
    """None until somebody reads."""
    try:
        number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    os.set_blocking(number, True)
    return os.fdopen(number, "wb")


def _write(pipe: BinaryIO, file: bytes) -> None:
    with pipe:
        pipe.write(file)


def _complete(results: Path, lines: int) -> bytes:
    """Nothing until they are all there."""
    written = results.read_bytes() if results.exists() else b""
    return written if written.count(b"\n") == lines else b""


def _tally(results: bytes) -> Tally:
    tally = Tally()
    for line in results.splitlines():
        result: dict[str, Any] = orjson.loads(line)
        if result["error"]:
            tally.complain(result["error"])
        else:
            tally.ok += 1
            tally.tokens += result["response"]["body"]["usage"]["completion_tokens"]
    return tally
