"""The journal on a Postgres and a Redis that the test plays. Which entries share a commit: unit/test_batching.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import asyncpg
import pytest

from app.metrics.instruments import WorkerMetrics
from app.protocol.events.chunk import Chunk
from app.sizes import LARGE_BYTES
from app.store import database
from app.store.database import Database, StoreBusy, StoreLocked, StoreUnavailable
from app.store.responses import logs as store
from app.store.responses.logs import Entry
from app.streaming.pubsub import PubSub
from workers.generation.run import Run
from workers.generation.writing import journal as module
from workers.generation.writing.journal import Journal, Refused

CODES = ("XX001", "P0001", "22P05")
"""Damaged data, an exception that a trigger raised, and a value that Postgres refuses."""


class Postgres:
    """Appends entries one batch at a time while `open` is set. Entries of `fenced` are left out."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[list[str]] = []
        self.fenced: set[str] = set()
        self.stuck: set[str] = set()
        self.errors: dict[str, Exception] = {}
        """What a batch fails with that holds the response; "": every batch."""
        self.failures: list[Exception] = []
        """What the next batches fail with."""

    async def append(self, db: object, entries: Sequence[Entry]) -> set[str]:
        ids = [entry.chunk.response_id for entry in entries]
        self.batches.append(ids)
        await self.open.wait()
        if self.stuck.intersection(ids):
            await asyncio.Event().wait()
        if self.failures:
            raise self.failures.pop()
        for each in ("", *ids):
            if each in self.errors:
                raise self.errors[each]
        return set(ids) - self.fenced


class Redis:
    """Records what is published."""

    def __init__(self) -> None:
        self.published: list[str] = []

    async def publish(self, chunks: Iterable[Chunk]) -> None:
        await asyncio.sleep(0)
        self.published += [chunk.response_id for chunk in chunks]


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Postgres:
    played = Postgres()
    monkeypatch.setattr(store, "append", played.append)
    monkeypatch.setattr(database, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    return played


@pytest.fixture
def redis() -> Redis:
    return Redis()


@pytest.fixture
async def journal(postgres: Postgres, redis: Redis) -> AsyncIterator[Journal]:
    made = Journal(cast(Database, None), cast(PubSub, redis), WorkerMetrics())
    yield made
    await made.close()


def error_of(code: str) -> Exception:
    """As the driver raises it; its text quotes the output."""
    error: Exception = asyncpg.PostgresError.new({"C": code, "M": "bad: the output"})
    return error


def entry(response_id: str, frames: bytes = b"") -> Entry:
    return Entry("worker", Chunk(response_id, 0, 0, 1, (), frames))


async def test_what_is_fenced_or_followed_by_nobody_is_not_published(
    postgres: Postgres, redis: Redis, journal: Journal
) -> None:
    postgres.fenced = {"b"}
    entries = [entry("a"), entry("b"), entry("c"), replace(entry("d"), is_followed=False)]
    assert await asyncio.gather(*map(journal.append, entries)) == [True, False, True, True]
    await journal.close()
    assert redis.published == ["a", "c"]


async def test_ends_that_nobody_follows_are_published_together(
    redis: Redis, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 3600)
    for name in "ab":
        last = replace(entry(name).chunk, final=True)
        assert await journal.append(replace(entry(name), chunk=last, is_followed=False))
        assert redis.published == []
    assert await journal.append(entry("c"))
    await journal.close()
    assert redis.published == ["c", "a", "b"]


async def test_a_fenced_run_takes_back_the_chunk_that_waits_so_that_the_next_run_is_alone(
    postgres: Postgres, journal: Journal
) -> None:
    postgres.open.clear()
    begun = journal.append(entry("begun"))
    await asyncio.sleep(0)
    task = asyncio.create_task(asyncio.sleep(60))
    run = Run(cast(Any, None), cast(Any, task), cast(Any, None), last_commit=journal.append(entry("a")))
    run.fence()
    again = journal.append(entry("a"))
    postgres.open.set()
    assert await asyncio.gather(begun, again) == [True, True]
    assert postgres.batches == [["begun"], ["a"]]
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("code", [None, *CODES])
async def test_one_bad_entry_fails_alone(postgres: Postgres, redis: Redis, journal: Journal, code: str | None) -> None:
    postgres.errors["b"] = ValueError("bad") if code is None else error_of(code)
    commits = [journal.append(entry(name)) for name in "abc"]
    assert [await commits[0], await commits[2]] == [True, True]
    while not commits[1].done():
        assert await journal.append(replace(entry("d"), is_followed=False))
    with pytest.raises(Refused) as caught:
        await commits[1]
    assert "bad" not in str(caught.value)
    assert postgres.batches[:4] == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    tried = postgres.batches.count(["b"])
    assert tried == 1 if code in (None, "22P05") else module.TRIES <= tried < module.PATIENT_TRIES
    await journal.close()
    assert redis.published == ["a", "c"]


async def test_a_large_entry_that_postgres_does_not_take_holds_up_no_other_large_one(
    postgres: Postgres, journal: Journal
) -> None:
    postgres.errors["bad"] = error_of("54000")
    large = b"x" * (LARGE_BYTES + 1)
    refused = journal.append(entry("bad", large))
    while not refused.done():
        assert await journal.append(entry("good", large))
    with pytest.raises(Refused):
        await refused
    assert module.TRIES <= postgres.batches.count(["bad"]) < module.PATIENT_TRIES


async def test_an_entry_whose_conversation_is_held_waits_alone(postgres: Postgres, journal: Journal) -> None:
    postgres.errors["locked"] = StoreLocked("held")
    commits = [journal.append(replace(entry(name), conversation_input=[])) for name in ("a", "locked", "b")]
    others = [journal.append(entry(name)) for name in "cd"]
    assert await asyncio.gather(commits[0], commits[2], *others) == [True] * 4
    assert not commits[1].done()
    postgres.errors.clear()
    assert await commits[1]


async def test_a_second_open_entry_of_a_response_is_refused(postgres: Postgres, journal: Journal) -> None:
    postgres.open.clear()
    begun, waiting = journal.append(entry("a")), journal.append(entry("b"))
    for name in "ab":
        with pytest.raises(RuntimeError, match=f"{name} has an open entry"):
            journal.append(entry(name))
    postgres.open.set()
    assert await asyncio.gather(begun, waiting) == [True, True]
    assert await asyncio.gather(journal.append(entry("a")), journal.append(entry("b"))) == [True, True]


async def test_entries_wait_while_postgres_is_away(postgres: Postgres, redis: Redis, journal: Journal) -> None:
    postgres.failures = [StoreUnavailable("away"), StoreUnavailable("away")]
    assert await journal.append(entry("a"))
    assert postgres.batches == [["a"]] * 3
    await journal.close()
    assert redis.published == ["a"]


async def test_commits_that_postgres_ends_again_and_again_fail_together_and_are_not_tried_alone(
    postgres: Postgres, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    postgres.errors[""] = StoreBusy("QueryCanceledError")
    results = await asyncio.gather(*(journal.append(entry(name)) for name in "ab"), return_exceptions=True)
    assert [type(result) for result in results] == [StoreBusy, StoreBusy]
    assert {tuple(batch) for batch in postgres.batches} == {("a", "b")}


async def test_while_postgres_takes_nothing_no_entry_is_at_fault_soon(
    postgres: Postgres, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.failures = [error_of("42883") for _ in range(10 * module.TRIES)]
    assert await asyncio.gather(*(journal.append(entry(name)) for name in "ab")) == [True, True]

    # At last it is.
    monkeypatch.setattr(module, "PATIENT_TRIES", 7)
    postgres.failures += [error_of("54000")] * 10
    postgres.batches.clear()
    with pytest.raises(Refused):
        await journal.append(entry("a"))
    assert postgres.batches == [["a"]] * 7


async def test_others_do_not_wait_for_the_commit_of_a_large_entry(
    postgres: Postgres, redis: Redis, journal: Journal
) -> None:
    postgres.stuck = {"large"}
    large = journal.append(entry("large", b"x" * (LARGE_BYTES + 1)))
    assert await asyncio.gather(*(journal.append(entry(name)) for name in "ab")) == [True, True]
    assert not large.done()
    await journal.close()
    assert large.cancelled()
    assert redis.published == ["a", "b"]


async def test_closing_does_not_wait_for_a_redis_that_never_answers(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeverAnswering(Redis):
        async def publish(self, chunks: Iterable[Chunk]) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.01)
    journal = Journal(cast(Database, None), cast(PubSub, NeverAnswering()), WorkerMetrics())
    assert await journal.append(entry("a"))
    await journal.close()
