"""Draining and pausing on a real `longhaul up` with two workers, while responses run and wait, and workers die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import pytest
from openai import APIStatusError, OpenAI

from tests.support.commands import CODE
from tests.support.longhaul import Longhaul
from tests.support.waiting import until_sync

MODEL = "scripted"
ENDLESS = "/count 1000000"
SOME_SECONDS = "/count 600"


@pytest.fixture
def client(pair: Longhaul) -> Iterator[OpenAI]:
    with pair.client() as client:
        yield client


def read(pair: Longhaul, statement: str, *values: Any) -> list[Any]:
    async def rows() -> list[Any]:
        url = dict(line.split("=", 1) for line in (pair.home / "services").read_text().splitlines())["DATABASE_URL"]
        connection = await asyncpg.connect(url)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    return asyncio.run(rows())


def command(pair: Longhaul, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "LONGHAUL_URL": pair.url}
    line = [sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(line, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def workers(pair: Longhaul) -> dict[str, dict[str, Any]]:
    with pair.http() as http:
        return {each["name"]: each for each in http.get("/v1/operator/workers").json()["data"]}


def drain(pair: Longhaul, name: str) -> None:
    with pair.http() as http:
        http.post(f"/v1/operator/workers/{name}/drain").raise_for_status()


def begin(client: OpenAI, count: int, text: str) -> list[str]:
    return [client.responses.create(model=MODEL, input=text, background=True).id for _ in range(count)]


def places(pair: Longhaul, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The worker and the attempt of each that was claimed."""
    found = "SELECT id, sent_to, attempt FROM responses WHERE id = ANY($1) AND attempt > 0"
    return {row["id"]: (row["sent_to"], row["attempt"]) for row in read(pair, found, list(ids))}


def run(pair: Longhaul, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """`places` of all of them, once they run on two workers."""
    until_sync(lambda: len({node for node, _ in places(pair, ids).values()}) == 2, what=lambda: str(workers(pair)))
    until_sync(lambda: len(places(pair, ids)) == len(ids), what="all are claimed")
    return places(pair, ids)


def wait_until_ended(client: OpenAI, ids: Sequence[str]) -> None:
    for each in ids:
        until_sync(lambda each=each: client.responses.retrieve(each).status == "completed", what=each)


@pytest.fixture
def ready(pair: Longhaul) -> list[str]:
    """The names of two workers that take responses."""

    def both() -> bool:
        return [each["state"] for each in workers(pair).values()] == ["ready", "ready"]

    until_sync(both, what=lambda: str(workers(pair)))
    return sorted(workers(pair))


def test_a_drained_worker_ends_what_it_runs_and_gets_nothing_more(
    pair: Longhaul, client: OpenAI, ready: list[str]
) -> None:
    ids = begin(client, 8, SOME_SECONDS)
    before = run(pair, ids)
    drained, other = ready
    draining = command(pair, "drain", drained, "--wait", "--reason", "a bad fan")
    until_sync(lambda: workers(pair)[drained]["draining_since"] is not None)
    late = begin(client, 8, "/count 10")
    wait_until_ended(client, late)
    assert {node for node, _ in places(pair, late).values()} == {other}
    out, error = draining.communicate()
    assert (draining.returncode, out) == (0, f"{drained} is drained; it has no responses\n"), error
    wait_until_ended(client, ids)
    assert places(pair, ids) == before, "nothing moved, and nothing began again"
    given_back = command(pair, "undrain", drained)
    assert given_back.wait() == 0
    given_back.communicate()
    late = begin(client, 8, SOME_SECONDS)
    run(pair, late)
    wait_until_ended(client, late)


def test_what_a_draining_worker_had_goes_on_elsewhere_when_it_is_killed(
    pair: Longhaul, client: OpenAI, ready: list[str]
) -> None:
    ids = begin(client, 8, ENDLESS)
    before = run(pair, ids)
    killed, other = ready
    drain(pair, killed)
    mine = [each for each in ids if before[each][0] == killed]
    os.kill(workers(pair)[killed]["pid"], signal.SIGKILL)

    def taken_over() -> bool:
        now = places(pair, ids)
        return all(now[each][1] == 2 and now[each][0] != killed for each in mine)

    until_sync(taken_over, what=lambda: str(places(pair, ids)))
    assert all(places(pair, ids)[each] == (other, 1) for each in ids if each not in mine)
    for each in ids:
        client.responses.cancel(each)
    until_sync(lambda: killed not in workers(pair) and len(workers(pair)) == 2, what="a worker in its place")
    until_sync(lambda: {each["state"] for each in workers(pair).values()} == {"ready"}, what="nothing is drained")


def test_what_waits_for_a_paused_model_runs_once_it_is_resumed(
    pair: Longhaul, client: OpenAI, ready: list[str]
) -> None:
    (running_,) = begin(client, 1, SOME_SECONDS)
    until_sync(lambda: len(places(pair, [running_])) == 1)
    assert command(pair, "pause", MODEL, "--reason", "a bad release").communicate()[0].startswith("scripted is paused")
    ids = begin(client, 6, "/count 10")
    with pytest.raises(APIStatusError) as refused:
        client.responses.create(model=MODEL, input="/say Hi")
    assert (refused.value.status_code, refused.value.code) == (503, "model_paused")
    wait_until_ended(client, [running_])  # what has begun goes on, and its end sends nothing
    assert places(pair, ids) == {}
    assert command(pair, "resume", MODEL).communicate()[0] == "scripted is resumed\n"
    wait_until_ended(client, ids)
