"""Somebody who does all the while what users do, in a process of its own. Its answers are what is judged."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tests.attacks.attack import Ask
from tests.support.waiting import until

TIMEOUT_SECONDS = 150.0
PAUSE_SECONDS = 0.4
"""Between two requests of one kind."""
ALONE_ASKS = 20
"""Requests of each kind by which it is known how long they take while nobody attacks."""
ITEM_BYTES = 80_000
"""Size of a conversation's item: more than what a process takes without counting it."""
CONVERSATION_ITEMS = 100
_SECRET = "BYSTANDER_KEY"
"""The environment variable with the API key."""
_GOOD = ("response.completed", "response.incomplete")
_FINAL = (*_GOOD, "response.failed", "error")
_DONE = "completed"


class Bystander:
    """Reads what the process prints: a line for each of its requests."""

    def __init__(self, url: str, model: str, secret: str) -> None:
        argv = [sys.executable, "-m", "tests.attacks.bystander", url, model]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, _SECRET: secret})
        self._asks: list[Ask] = []
        self._last: dict[str, float] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def asks_since(self, started: float) -> tuple[Ask, ...]:
        """The requests that ended after `started`, once one of each kind that begins now has been answered."""
        now = time.monotonic()
        await until(
            lambda: all(self._last.get(kind, 0.0) > now for kind in DOES), TIMEOUT_SECONDS, "the bystander's answers"
        )
        return tuple(ask for ask in list(self._asks) if ask.started + ask.seconds >= started)

    async def asks_alone(self) -> tuple[Ask, ...]:
        """ALONE_ASKS requests of each kind, after the first ones, which are slow. Call it while nobody attacks."""
        await self.asks_since(time.monotonic())
        began = time.monotonic()

        def are_enough() -> bool:
            since = [ask.kind for ask in list(self._asks) if ask.started > began]
            return all(since.count(kind) >= ALONE_ASKS for kind in DOES)

        await until(are_enough, TIMEOUT_SECONDS, "the bystander's answers while it is alone")
        return await self.asks_since(began)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, started, seconds, status = line.split(maxsplit=3)
            self._asks.append(Ask(float(started), float(seconds), status.strip(), kind))
            self._last[kind] = float(started)


@contextlib.contextmanager
def standing_by(url: str, model: str, secret: str) -> Iterator[Bystander]:
    bystander = Bystander(url, model, secret)
    try:
        yield bystander
    finally:
        bystander.close()


# -- in the bystander's process --------------------------------------------------------------------------------------


class User:
    """One user. Each kind of request is a method that returns how it ended: `completed`, or what came instead."""

    def __init__(self, url: str, model: str, headers: dict[str, str]) -> None:
        self._url, self._model, self._headers = url, model, headers
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, verify=False, headers=headers)
        self._numbers = itertools.count(int(time.time()))
        self._response = self._conversation = ""
        self._items = 0

    async def post(self, **fields: Any) -> str:
        answer = await self._http.post("/v1/responses", json=self._body(**fields))
        if answer.status_code == httpx.codes.OK:
            self._response = answer.json()["id"]
        return _ending(answer)

    async def read(self) -> str:
        """Reads a response of its own."""
        if not self._response:
            return await self.post()
        return _ending(await self._http.get(f"/v1/responses/{self._response}"))

    async def stream(self) -> str:
        last: dict[str, Any] = {}
        async with self._http.stream("POST", "/v1/responses", json=self._body(stream=True)) as answer:
            if answer.status_code != httpx.codes.OK:
                return str(answer.status_code)
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
        return _last(last)

    async def schema(self) -> str:
        """An answer in a form that nobody has asked for yet."""
        properties = {f"field_{next(self._numbers)}": {"type": "string"}}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return await self.post(text={"format": {"type": "json_schema", "name": "form", "schema": schema}})

    async def tool(self) -> str:
        """A plain function tool that nobody has had yet."""
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        tool = {"type": "function", "name": f"weather_{next(self._numbers)}", "parameters": parameters}
        return await self.post(tools=[tool], tool_choice="required")

    async def count(self) -> str:
        body = {"model": self._model, "input": "How long is this?"}
        return _ending(await self._http.post("/v1/responses/input_tokens", json=body))

    async def item(self) -> str:
        """Adds to a conversation, and to a new one now and then."""
        if self._items % CONVERSATION_ITEMS == 0:
            made = await self._http.post("/v1/conversations", json={})
            if made.status_code != httpx.codes.OK:
                return str(made.status_code)
            self._conversation = made.json()["id"]
        self._items += 1
        body = {"items": [{"role": "user", "content": "i" * ITEM_BYTES}]}
        return _ending(await self._http.post(f"/v1/conversations/{self._conversation}/items", json=body))

    async def file(self) -> str:
        """Sends a small file."""
        part = {"type": "input_file", "filename": "a.txt", "file_data": base64.b64encode(b"Hello!").decode()}
        return await self.post(input=[{"role": "user", "content": [part]}])

    async def websocket(self) -> str:
        """One turn on a new connection."""
        url = f"{self._url.replace('http', 'ws', 1)}/v1/responses"
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            connect(url, proxy=None, additional_headers=self._headers, max_size=None) as opened,
        ):
            await opened.send(json.dumps({"type": "response.create", **self._body()}))
            while (event := json.loads(await opened.recv()))["type"] not in _FINAL:
                pass
        return _last(event)

    def _body(self, **fields: Any) -> dict[str, Any]:
        return {"model": self._model, "input": "Are you there?", "max_output_tokens": 4, **fields}


DOES: dict[str, Callable[[User], Awaitable[str]]] = {
    each.__name__: each
    for each in (
        *(User.post, User.read, User.stream, User.schema, User.tool, User.count, User.item, User.file),
        User.websocket,
    )
}


def _ending(answer: httpx.Response) -> str:
    """How a request ended that creates, reads or counts."""
    if answer.status_code != httpx.codes.OK:
        return str(answer.status_code)
    status = answer.json().get("status", _DONE)
    return _DONE if status == "incomplete" else str(status)


def _last(event: dict[str, Any]) -> str:
    """How a stream ended whose last event this is."""
    if event.get("type") in _GOOD:
        return _DONE
    return str(event.get("status") or event.get("type") or "no event")


async def _keep_asking(user: User, kind: str) -> None:
    while True:
        started = time.monotonic()
        try:
            status = await DOES[kind](user)
        except InvalidStatus as refused:
            status = str(refused.response.status_code)
        except (httpx.HTTPError, WebSocketException, OSError) as error:
            status = type(error).__name__
        print(kind, started, time.monotonic() - started, status, flush=True)  # noqa: T201 - read by Bystander
        await asyncio.sleep(PAUSE_SECONDS)


async def _main(url: str, model: str) -> None:
    user = User(url, model, {"authorization": f"Bearer {os.environ[_SECRET]}"})
    async with asyncio.TaskGroup() as tasks:
        for kind in DOES:
            tasks.create_task(_keep_asking(user, kind))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
