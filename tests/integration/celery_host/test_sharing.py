"""A burst and two workers: how real workers share what is queued, through real notes in Redis."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.celery_bench import Bench
from tests.support.celery_processes import QUEUE, Worker
from tests.support.waiting import until_sync
from workers.celery_host.sharing import notes_of


@pytest.fixture
def pair(start: Any, bench: Bench) -> tuple[Worker, Worker]:
    """Two idle workers that know of each other. Each leaves the other a second to take its part."""
    first, second = (start(name, concurrency=256, PRETEND_LOOK_SECONDS="1") for name in ("one", "two"))
    first.ready(), second.ready()
    until_sync(lambda: bench.broker.hlen(notes_of([QUEUE])) == 2, what="two notes")
    looks = number_of_looks(bench)
    until_sync(lambda: number_of_looks(bench) > looks + 30, what="more looks than workers make that are alone")
    return first, second


def number_of_looks(bench: Bench) -> int:
    return int(bench.broker.info("commandstats")["cmdstat_eval"]["calls"])


@pytest.mark.parametrize(("burst", "tolerance"), [(12, 1), (200, 30)])
def test_a_burst_is_shared_out_by_free_capacity(
    pair: tuple[Worker, Worker], bench: Bench, burst: int, tolerance: int
) -> None:
    ids = [f"until-{number}" for number in range(burst)]
    bench.send(*ids)
    bench.wait_for_log(*(f"start {each}" for each in ids))
    one, two = bench.active(2)
    assert one + two == burst
    assert abs(one - burst / 2) <= tolerance
    bench.redis.set("go", 1)


def test_single_requests_go_to_the_worker_that_has_less(pair: tuple[Worker, Worker], bench: Bench) -> None:
    for number in range(8):
        bench.send(f"until-{number}")
        bench.wait_for_log(f"start until-{number}")
        one, two = bench.active(2)
        assert abs(one - two) <= 1
    bench.redis.set("go", 1)


def test_a_worker_whose_neighbour_died_takes_all(pair: tuple[Worker, Worker], bench: Bench) -> None:
    first, _ = pair
    first.kill()
    ids = [f"until-{number}" for number in range(64)]
    bench.send(*ids)
    bench.wait_for_log(*(f"start {each}" for each in ids[1:]))  # one may have been on its way to the dead worker
    bench.redis.set("go", 1)
