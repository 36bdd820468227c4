"""Draining and pausing on a real `longhaul up` with two workers, while responses run and wait, and workers die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from openai import APIStatusError, OpenAI

from tests.support.commands import CODE
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import until_sync

MODEL = "scripted"
ENDLESS = "/count 1000000"
SOME_SECONDS = "/count 600"


@pytest.fixture(scope="module")
def fleet(scripted_models: Path) -> Iterator[Longhaul]:
    with open_folder() as folder, running(Longhaul(folder / "home", scripted_models, workers=2)) as installation:
        yield installation


@pytest.fixture
def client(fleet: Longhaul) -> Iterator[OpenAI]:
    with fleet.client() as client:
        yield client


def read(fleet: Longhaul, statement: str, *values: Any) -> list[Any]:
    async def rows() -> list[Any]:
        url = dict(line.split("=", 1) for line in (fleet.home / "services").read_text().splitlines())["DATABASE_URL"]
        connection = await asyncpg.connect(url)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    return asyncio.run(rows())


def command(fleet: Longhaul, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "LONGHAUL_URL": fleet.url}
    line = [sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(line, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def workers(fleet: Longhaul) -> dict[str, dict[str, Any]]:
    with fleet.http() as http:
        return {each["name"]: each for each in http.get("/v1/operator/workers").json()["data"]}


def drain(fleet: Longhaul, name: str) -> None:
    with fleet.http() as http:
        http.post(f"/v1/operator/workers/{name}/drain").raise_for_status()


def begin(client: OpenAI, count: int, text: str) -> list[str]:
    return [client.responses.create(model=MODEL, input=text, background=True).id for _ in range(count)]


def places(fleet: Longhaul, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The worker and the attempt of each that was claimed."""
    found = "SELECT id, sent_to, attempt FROM responses WHERE id = ANY($1) AND attempt > 0"
    return {row["id"]: (row["sent_to"], row["attempt"]) for row in read(fleet, found, list(ids))}


def run(fleet: Longhaul, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """`places` of all of them, once they run on two workers."""
    until_sync(lambda: len({node for node, _ in places(fleet, ids).values()}) == 2, what=lambda: str(workers(fleet)))
    until_sync(lambda: len(places(fleet, ids)) == len(ids), what="all are claimed")
    return places(fleet, ids)


def wait_until_ended(client: OpenAI, ids: Sequence[str]) -> None:
    for each in ids:
        until_sync(lambda each=each: client.responses.retrieve(each).status == "completed", what=each)


@pytest.fixture
def ready(fleet: Longhaul) -> list[str]:
    """The names of two workers that take responses."""

    def both() -> bool:
        return [each["state"] for each in workers(fleet).values()] == ["ready", "ready"]

    until_sync(both, what=lambda: str(workers(fleet)))
    return sorted(workers(fleet))


def test_a_drained_worker_ends_what_it_runs_and_gets_nothing_more(
    fleet: Longhaul, client: OpenAI, ready: list[str]
) -> None:
    ids = begin(client, 8, SOME_SECONDS)
    before = run(fleet, ids)
    drained, other = ready
    draining = command(fleet, "drain", drained, "--wait", "--reason", "a bad fan")
    until_sync(lambda: workers(fleet)[drained]["draining_since"] is not None)
    late = begin(client, 8, "/count 10")
    wait_until_ended(client, late)
    assert {node for node, _ in places(fleet, late).values()} == {other}
    out, error = draining.communicate()
    assert (draining.returncode, out) == (0, f"{drained} is drained; it has no responses\n"), error
    wait_until_ended(client, ids)
    assert places(fleet, ids) == before, "nothing moved, and nothing began again"
    given_back = command(fleet, "undrain", drained)
    assert given_back.wait() == 0
    given_back.communicate()
    late = begin(client, 8, SOME_SECONDS)
    run(fleet, late)
    wait_until_ended(client, late)


def test_what_a_draining_worker_had_goes_on_elsewhere_when_it_is_killed(
    fleet: Longhaul, client: OpenAI, ready: list[str]
) -> None:
    ids = begin(client, 8, ENDLESS)
    before = run(fleet, ids)
    killed, other = ready
    drain(fleet, killed)
    mine = [each for each in ids if before[each][0] == killed]
    os.kill(workers(fleet)[killed]["pid"], signal.SIGKILL)

    def taken_over() -> bool:
        now = places(fleet, ids)
        return all(now[each][1] == 2 and now[each][0] != killed for each in mine)

    until_sync(taken_over, what=lambda: str(places(fleet, ids)))
    assert all(places(fleet, ids)[each] == (other, 1) for each in ids if each not in mine)
    for each in ids:
        client.responses.cancel(each)
    until_sync(lambda: killed not in workers(fleet) and len(workers(fleet)) == 2, what="a worker in its place")
    until_sync(lambda: {each["state"] for each in workers(fleet).values()} == {"ready"}, what="nothing is drained")


def test_what_waits_for_a_paused_model_runs_once_it_is_resumed(
    fleet: Longhaul, client: OpenAI, ready: list[str]
) -> None:
    (running_,) = begin(client, 1, SOME_SECONDS)
    until_sync(lambda: len(places(fleet, [running_])) == 1)
    assert command(fleet, "pause", MODEL, "--reason", "a bad release").communicate()[0].startswith("scripted is paused")
    ids = begin(client, 6, "/count 10")
    with pytest.raises(APIStatusError) as refused:
        client.responses.create(model=MODEL, input="/say Hi")
    assert (refused.value.status_code, refused.value.code) == (503, "model_paused")
    wait_until_ended(client, [running_])  # what has begun goes on, and its end sends nothing
    assert places(fleet, ids) == {}
    assert command(fleet, "resume", MODEL).communicate()[0] == "scripted is resumed\n"
    wait_until_ended(client, ids)
