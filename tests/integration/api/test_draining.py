"""An API that is told to stop: foreground answers end in peace, and nobody else waits for that."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from app.api.connection import http
from app.api.shutdown import REPEAT_SECONDS
from app.store.database import Database
from tests.integration.api.common import creation, event_of, socket_of
from tests.support.api import MODEL, Api, client_of, serving, settings_for
from tests.support.api_process import ApiProcess
from tests.support.logs import row_of
from tests.support.player import Player, one
from tests.support.waiting import until

GRACE = 600.0


@asynccontextmanager
async def patient(services: Any, home: Path) -> AsyncIterator[Api]:
    """An API whose grace lasts longer than any test."""
    async with serving(settings_for(services, home, api_grace_seconds=GRACE)) as api:
        try:
            yield api
        finally:
            api.runtime.shutdown.end_grace()


def stop(api: Api) -> None:
    """As SIGTERM does."""
    api.runtime.shutdown.begin()
    api.server.should_exit = True


async def refuses(port: int | None) -> bool:
    """Whether a new connection is refused."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (ConnectionRefusedError, ConnectionResetError):  # Reset: it waited at the port when that was closed.
        return True
    writer.close()
    return False


async def is_left(api: Api, connections: int = 0) -> None:
    """Waits until there are so many connections."""
    await until(lambda: len(api.server.server_state.connections) == connections)


async def test_foreground_answers_end_in_peace_while_new_connections_are_refused(
    services: Any, player: Player, tmp_path: Path
) -> None:
    for stream in (False, True):
        async with patient(services, tmp_path) as api:
            answering = asyncio.create_task(api.post(stream=stream))
            play = await player.begin()
            await play.said("Once ")
            stop(api)
            await until(lambda api=api: refuses(api.client.base_url.port))  # type: ignore[misc]
            assert api.server.server_state.connections
            await (await play.said("upon")).finished()
            answer = await answering
            assert answer.status_code == 200 and "Once upon" in answer.text
            assert stream or answer.headers["connection"] == "close"
            await is_left(api)


async def test_background_readers_are_sent_elsewhere_at_once_and_readiness_says_that_the_server_stops(
    services: Any, db: Database, player: Player, tmp_path: Path
) -> None:
    async with patient(services, tmp_path) as api:
        response_id = await api.background(stream=True)
        async with api.resuming(response_id) as reader:
            assert (await reader.event() or {})["type"] == "response.created"
            api.runtime.shutdown.begin()
            answer = await api.client.get("/health/ready")
            assert (answer.status_code, answer.json()) == (503, {"status": "stopping"})
            stop(api)
            assert b"[DONE]" not in await reader.rest()
        await is_left(api)


async def test_a_request_on_a_kept_connection_is_answered_as_its_last_and_an_idle_one_is_closed_soon(
    services: Any, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patient(services, tmp_path) as api:
        await api.client.get("/health/live")
        stop(api)
        await is_left(api)
    monkeypatch.setattr(http, "LAST_REQUEST_SECONDS", GRACE)
    monkeypatch.setattr(http, "END_SECONDS", GRACE)
    async with patient(services, tmp_path) as api:
        assert (await api.client.get("/health/live")).headers.get("connection") is None
        stop(api)
        await until(lambda: refuses(api.client.base_url.port))
        answer = await api.post(background=True)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        await is_left(api)


async def test_only_foreground_answers_have_the_grace(
    services: Any, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends its body slowly holds the server no longer than any other answer may take."""
    monkeypatch.setattr(http, "END_SECONDS", 0.2)
    async with patient(services, tmp_path) as api:
        _, writer = await asyncio.open_connection("127.0.0.1", api.client.base_url.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 100\r\n\r\n{")
        await until(lambda: len(api.server.server_state.tasks) == 1)
        answering = asyncio.create_task(api.post())
        await one(db, "queued")
        stop(api)
        await is_left(api, connections=1)
        assert not answering.done()
        api.runtime.shutdown.end_grace()
        assert (await answering).json()["status"] == "cancelled"
        writer.close()


async def test_answers_over_websockets_end_in_peace_or_are_cancelled_and_then_the_socket_is_closed(
    services: Any, db: Database, player: Player, tmp_path: Path
) -> None:
    async with (
        patient(services, tmp_path) as api,
        socket_of(api) as socket,
        socket_of(api) as idle,
        socket_of(api) as hopeless,
    ):
        await socket.send(creation())
        play = await player.begin()
        await hopeless.send(creation())
        await one(db, "queued")
        stop(api)
        await until(lambda: refuses(api.client.base_url.port))
        await closed(idle)
        await socket.send(creation(stream_id="next"))
        error = await event_of(socket, "error")
        assert (error["status"], error["error"]["code"]) == (503, "websocket_connection_limit_reached")
        await (await play.said("Hi")).finished()
        assert (await event_of(socket, "response.completed"))["response"]["status"] == "completed"
        await closed(socket)
        api.runtime.shutdown.end_grace()
        assert (await event_of(hopeless, "response.failed"))["response"]["status"] == "cancelled"
        await is_left(api)


async def closed(socket: Any) -> None:
    with pytest.raises(ConnectionClosed) as caught:
        await socket.recv()
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012


async def test_a_second_signal_ends_the_grace_in_all_processes_of_an_api(
    services: Any, db: Database, tmp_path: Path
) -> None:
    """Processes of its own: signals are at stake."""
    env = {"LONGHAUL_API_GRACE_SECONDS": str(GRACE), "LONGHAUL_API_PROCESSES": "2"}
    process = ApiProcess(services, tmp_path, **env)
    try:
        async with client_of(f"http://127.0.0.1:{process.port}") as client:
            await process.started(client)
            foreground = asyncio.create_task(client.post("/v1/responses", json={"model": MODEL, "input": "Hello!"}))
            await one(db, "queued")
            process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(process.port), what="the port to be closed, by all processes")
            assert process.is_running and not foreground.done()

            await asyncio.sleep(REPEAT_SECONDS)  # A sooner signal would count as the first one.
            process.send_signal(signal.SIGTERM)
            assert (await foreground).json()["status"] == "cancelled"
        await process.ended()
        assert "Traceback" not in process.text
    finally:
        process.kill()
    assert (await row_of(db, await one(db, "cancelled"))).attempt == 0
