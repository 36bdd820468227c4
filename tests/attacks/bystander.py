"""Somebody who only asks for four tokens, all the while, in a process of its own. Its answers are what is judged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx

from tests.attacks.attack import Ask
from tests.support.waiting import until

TIMEOUT_SECONDS = 150.0
PAUSE_SECONDS = 0.02
_SECRET = "BYSTANDER_KEY"
"""The environment variable with the API key."""


class Bystander:
    """Reads what the process prints: a line for each of its requests."""

    def __init__(self, url: str, model: str, secret: str) -> None:
        argv = [sys.executable, "-m", "tests.attacks.bystander", url, model]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, _SECRET: secret})
        self._asks: list[Ask] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def asks_since(self, started: float) -> tuple[Ask, ...]:
        """The requests that ended after `started`, once one that begins now has been answered."""
        now = time.monotonic()
        await until(
            lambda: any(ask.started > now for ask in self._asks[-3:]), TIMEOUT_SECONDS, "the bystander's answer"
        )
        return tuple(ask for ask in list(self._asks) if ask.started + ask.seconds >= started)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            started, seconds, status = line.split(maxsplit=2)
            self._asks.append(Ask(float(started), float(seconds), status.strip()))


@contextlib.contextmanager
def standing_by(url: str, model: str, secret: str) -> Iterator[Bystander]:
    bystander = Bystander(url, model, secret)
    try:
        yield bystander
    finally:
        bystander.close()


async def _ask(client: httpx.AsyncClient, model: str) -> str:
    body = {"model": model, "input": "Are you there?", "max_output_tokens": 4}
    try:
        answer = await client.post("/v1/responses", json=body)
    except httpx.HTTPError as error:
        return type(error).__name__
    if answer.status_code != 200:
        return str(answer.status_code)
    status = answer.json()["status"]
    return "completed" if status in ("completed", "incomplete") else str(status)


async def _keep_asking(url: str, model: str) -> None:
    headers = {"authorization": f"Bearer {os.environ[_SECRET]}"}
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, verify=False, headers=headers) as client:
        while True:
            started = time.monotonic()
            status = await _ask(client, model)
            print(started, time.monotonic() - started, status, flush=True)  # noqa: T201 - read by Bystander
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(_keep_asking(*sys.argv[1:]))
