"""Draining on a real `longhaul up` with two workers, while responses run and wait, and workers die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from openai import OpenAI

from tests.e2e.conftest import admin_of, read, workers
from tests.support.commands import CODE
from tests.support.longhaul import Longhaul
from tests.support.waiting import until_sync

MODEL = "scripted"
ENDLESS = "/hang 5"
SOME_SECONDS = "/count 300"


@pytest.fixture
def client(pair: Longhaul) -> Iterator[OpenAI]:
    with pair.client() as client:
        yield client


def drain(pair: Longhaul, name: str, how: str = "drain") -> None:
    with admin_of(pair) as admin:
        admin.post(f"/operator/workers/{name}/{how}").raise_for_status()


def begin(client: OpenAI, count: int, text: str) -> list[str]:
    return [client.responses.create(model=MODEL, input=text, background=True).id for _ in range(count)]


def places(pair: Longhaul, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The worker and the attempt of each that was claimed."""
    found = "SELECT id, sent_to, attempt FROM responses WHERE id = ANY($1) AND attempt > 0"
    return {row["id"]: (row["sent_to"], row["attempt"]) for row in read(pair, found, list(ids))}


def run(pair: Longhaul, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """`places` of all of them, once they run on two workers."""
    until_sync(lambda: len(places(pair, ids)) == len(ids), what="all are claimed")
    found = places(pair, ids)
    assert len({node for node, _ in found.values()}) == 2
    return found


def wait_until_ended(client: OpenAI, ids: Sequence[str]) -> None:
    for each in ids:
        until_sync(lambda each=each: client.responses.retrieve(each).status == "completed", what=each)


def test_a_drained_worker_ends_what_it_runs_and_gets_nothing_more(
    pair: Longhaul, client: OpenAI, both: list[str]
) -> None:
    ids = begin(client, 6, SOME_SECONDS)
    before = run(pair, ids)
    drained, other = both
    far = {"LONGHAUL_URL": pair.url, "LONGHAUL_API_KEY": (pair.home / "admin-key").read_text().strip()}
    draining = subprocess.Popen(
        [sys.executable, "-c", CODE, "drain", drained, "--wait", "--reason", "a bad fan"],
        env={**os.environ, **far}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until_sync(lambda: workers(pair)[drained]["draining_since"] is not None)
    late = begin(client, 6, "/count 10")
    wait_until_ended(client, late)
    assert {node for node, _ in places(pair, late).values()} == {other}
    out, error = draining.communicate()
    assert (draining.returncode, out) == (0, f"{drained} is drained; it has no responses\n"), error
    wait_until_ended(client, ids)
    assert places(pair, ids) == before, "nothing moved, and nothing began again"
    drain(pair, drained, "undrain")
    late = begin(client, 6, ENDLESS)
    run(pair, late)
    for each in late:
        client.responses.cancel(each)


def test_what_a_draining_worker_had_goes_on_elsewhere_when_it_is_killed(
    pair: Longhaul, client: OpenAI, both: list[str]
) -> None:
    ids = begin(client, 6, ENDLESS)
    before = run(pair, ids)
    killed, other = both
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
