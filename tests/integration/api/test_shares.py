"""Bounds of one process: requests that come at once, and projects beside each other."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.access.caller import OPERATOR_SCOPES
from app.bounds import Bound, BoundReached, Holding
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.integration.api.common import socket_of
from tests.support.api import Api, serving, settings_for
from tests.support.player import ids
from tests.support.tenants import administration, as_caller, tenant
from tests.support.waiting import until

AT_ONCE = 50


async def test_without_keys_readers_and_websockets_at_once_pass_no_bound_and_the_others_store_nothing(
    services: Any, db: Database, tmp_path: Path
) -> None:
    async with serving(settings_for(services, tmp_path)) as api:
        api.runtime.reader.readers.total, websockets_of(api).total = 1, 2
        for count, background in enumerate((True, False), 1):
            assert await statuses_at_once(api, background=background) == {200: 1, 503: AT_ONCE - 1}
            assert len(await ids(db)) == count
            await until(lambda: api.runtime.reader.readers.held == 0)
        async with api.streaming(background=True) as reader:
            assert reader.status == 200
            refused = await api.get((await ids(db))[0], stream="true")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_readers")
        async with AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(websocket(api)) for _ in range(2)]
            assert await refusal_of(api) == (503, "too_many_websockets", "1")
            await sockets[0].close()
            await until(lambda: websockets_of(api).held == 1)
            await stack.enter_async_context(websocket(api))


async def statuses_at_once(api: Api, **fields: Any) -> Counter[int]:
    """Statuses of clients that all read until the last one has its answer."""
    statuses: list[int] = []
    answered = asyncio.Event()

    async def read() -> None:
        async with api.streaming(**fields) as reader:
            statuses.append(reader.status)
            if len(statuses) == AT_ONCE:
                answered.set()
            await answered.wait()

    await asyncio.gather(*(read() for _ in range(AT_ONCE)))
    return Counter(statuses)


@pytest.fixture
async def red_and_blue(services: Any, db: Database, pubsub: PubSub, tmp_path: Path) -> AsyncIterator[tuple[Api, Api]]:
    """One API with room for eight of everything, as two projects see it."""
    async with serving(settings_for(services, tmp_path, auth="keys")) as api, AsyncExitStack() as stack:
        api.runtime.reader.readers.total = websockets_of(api).total = 8
        projects = [await tenant(administration(db, pubsub), name) for name in ("red", "blue")]
        red, blue = [await stack.enter_async_context(as_caller(api, project)) for project in projects]
        yield red, blue


def websocket(api: Api) -> connect:
    headers = {name: api.client.headers[name] for name in ("authorization",) if name in api.client.headers}
    return socket_of(api, headers)


def websockets_of(api: Api) -> Bound:
    bound: Bound = api.server.lifespan.state["bounds"].websockets
    return bound


async def refusal_of(api: Api) -> tuple[int, str, str]:
    with pytest.raises(InvalidStatus) as caught:
        await websocket(api)
    answer = caught.value.response
    return answer.status_code, json.loads(answer.body)["error"]["code"], answer.headers["retry-after"]


async def test_the_readers_and_websockets_of_one_project_leave_room_for_another(red_and_blue: tuple[Api, Api]) -> None:
    red, blue = red_and_blue
    async with AsyncExitStack() as stack:
        for _ in range(7):
            assert (await stack.enter_async_context(red.streaming(background=True))).status == 200
            await stack.enter_async_context(websocket(red))
        refused = await red.post(background=True, stream=True)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_readers")
        assert refused.headers["retry-after"] == "1"
        assert await refusal_of(red) == (429, "too_many_websockets", "1")
        assert (await stack.enter_async_context(blue.streaming(background=True))).status == 200
        await stack.enter_async_context(websocket(blue))
        assert await refusal_of(blue) == (503, "too_many_websockets", "1")
    await until(lambda: websockets_of(red).held == 0)
    async with websocket(red):
        pass


async def kept_connection(api: Api) -> tuple[int, str | None, asyncio.StreamWriter]:
    """The status of a request, whether its connection ends, and the connection, which stays open else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    key = api.client.headers["authorization"]
    writer.write(f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: {key}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    return int(head[9:12]), "close" if "connection: close" in head else None, writer


async def test_the_connections_of_one_project_leave_room_for_another_and_for_operators(
    services: Any, db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    async with (
        serving(settings_for(services, tmp_path, auth="keys", max_connections=16)) as api,
        AsyncExitStack() as stack,
    ):
        admin = administration(db, pubsub)
        callers = [await tenant(admin, name) for name in ("red", "blue")]
        operator = await admin.create_key(None, "operator", OPERATOR_SCOPES)
        red, blue, ours = [await stack.enter_async_context(as_caller(api, each)) for each in (*callers, operator)]
        bound: Bound = api.server.lifespan.state["bounds"].connections
        before = bound.held  # `serving` has asked for itself.
        opened = []
        for _ in range(14 - before):
            status, end, writer = await kept_connection(red)
            assert (status, end) == (200, None)
            opened.append(writer)
        while (answer := await kept_connection(red))[0] == 200:
            opened.append(answer[2])
        assert answer[:2] == (429, "close")
        answer[2].close()
        assert 7 * (16 - bound.held) >= len(opened) - 7
        assert (await blue.client.get("/v1/models")).status_code == 200
        assert (await ours.client.get("/v1/organization/projects")).status_code == 200
        for writer in opened:
            writer.close()
        await until(lambda: bound.held <= before + 2)


def fill(bound: Bound, projects: tuple[str, ...], parts: int = 64) -> list[Holding]:
    """The projects take one of `parts` in turns, until none may have more."""
    held, refused = [], 0
    for project in itertools.cycle(projects):
        try:
            held.append(bound.take(project, max(1, bound.total // parts)))
            refused = 0
        except BoundReached:
            refused += 1
        if refused == len(projects):
            return held
    raise AssertionError("no projects")


async def test_operators_and_probes_get_through_when_projects_hold_all_that_they_may(
    red_and_blue: tuple[Api, Api], db: Database, pubsub: PubSub
) -> None:
    red, _ = red_and_blue
    bounds = red.server.lifespan.state["bounds"]
    operator = await administration(db, pubsub).create_key(None, "operator", OPERATOR_SCOPES)
    before = bounds.connections.held
    for count in (3, 100):
        held: list[Holding] = []
        projects = tuple(f"proj_{number}" for number in range(count))
        for bound in (bounds.bodies, bounds.accepting, bounds.answers, bounds.websockets, red.runtime.reader.readers):
            held += fill(bound, projects)
        held += fill(bounds.connections, projects, bounds.connections.total)
        if count == 100:  # so many fill all that projects may have
            assert (await red.client.get("/v1/models")).json()["error"]["code"] == "too_many_connections"
        async with as_caller(red, operator) as ours:
            assert (await ours.client.post("/v1/organization/projects", json={"name": "n"})).status_code == 200
            for path in ("/v1/organization/projects", "/health/live", "/health/ready"):
                assert (await ours.client.get(path)).status_code == 200
        for each in held:
            each.release()
        await until(lambda: bounds.connections.held <= before, what="the operator's connection is closed")


async def test_reads_of_one_project_that_wait_for_their_turn_leave_turns_for_another_and_requests_too(
    red_and_blue: tuple[Api, Api], db: Database
) -> None:
    red, blue = red_and_blue
    response_id = await red.background()
    [(project,)] = await db.execute(text("SELECT project FROM responses"))
    accepting: Bound = red.server.lifespan.state["bounds"].accepting
    for asked, other in (
        (lambda: red.get(response_id), lambda: blue.client.get("/v1/models")),
        (lambda: red.post(background=True), lambda: blue.post(background=True)),
    ):
        share = accepting.take(project, accepting.total * 7 // 8)
        waiting = [asyncio.create_task(asked()) for _ in range(3)]
        await until(lambda: sum(map(len, accepting._lines.values())) == 3)
        assert (await other()).status_code == 200
        assert not any(each.done() for each in waiting)
        share.release()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
        await until(lambda: accepting.held == 0)
