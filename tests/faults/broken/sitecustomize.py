"""Switches one promise of the product off, in a process that was started with this folder in PYTHONPATH.

LONGHAUL_TEST_BREAK names it (`tests.faults.breaks`). Python imports a `sitecustomize` at its start, before any program;
the module in question is changed right after it was executed. Nothing in the product knows of this.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]


def _without_fence(journal: Any) -> None:
    """Appends whatever it is given: status, attempt and owner do not matter, nor what is there already."""
    for name in ("_APPEND", "_APPEND_AND_END"):
        setattr(journal, name, _unfenced(getattr(journal, name)))


def _unfenced(statement: str) -> str:
    for condition, instead in (
        (" AND b.attempt = l.attempt", ""),
        ("AND b.worker = l.worker", ""),
        ("WHERE l.status = 'in_progress'", ""),
        ("ORDER BY r.id FOR SHARE OF r", ""),
        (
            "SET attempt = excluded.attempt",
            "SET last = excluded.last, final = excluded.final, frames = excluded.frames",
        ),
        ("WHERE chunks.attempt = excluded.attempt AND chunks.frames = excluded.frames", ""),
    ):
        assert condition in statement, condition
        statement = statement.replace(condition, instead)
    return statement


def _without_claim(responses: Any) -> None:
    """Any message makes its worker the owner, whatever the row says."""

    async def claim(db: Any, response_id: str, worker: str) -> Any:
        statement = (
            responses.update(responses.responses)
            .where(responses.responses.c.id == response_id)
            .values(
                status="in_progress",
                attempt=responses.responses.c.attempt + 1,
                worker=worker,
                started_at=responses.func.coalesce(responses.responses.c.started_at, responses.func.now()),
                finished_at=None,
                output=None,
                usage=None,
                error=None,
                incomplete_details=None,
                log="live",
            )
            .returning(*responses._COLUMNS)
        )
        async with db.autocommit() as connection:
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else responses.response_row(row)

    async def claim_all(db: Any, wanted: Sequence[tuple[str, str]]) -> list[Any]:
        return [await claim(db, response_id, worker) for response_id, worker in wanted]

    responses.claim_all = claim_all


def _publish_first(journal: Any) -> None:
    """Readers are told before Postgres is."""
    commit = journal.Journal._commit

    async def publish_and_commit(self: Any, entries: Sequence[Any]) -> Any:
        self.publish(*(entry.chunk for entry in entries))
        await journal.asyncio.sleep(0.02)
        return await commit(self, entries)

    journal.Journal._commit = publish_and_commit


def _mute(journal: Any) -> None:
    """The journal publishes nothing more after an absence of Redis."""
    publish = journal.Journal._publish_one_batch

    async def publish_until_refused(self: Any, chunks: Sequence[Any]) -> None:
        if not self._redis_is_away:
            await publish(self, chunks)

    journal.Journal._publish_one_batch = publish_until_refused


def _deaf(pubsub: Any) -> None:
    """Readers hear nothing on a connection that is not the first."""
    connect, dispatch = pubsub.PubSub._connect_and_receive, pubsub.PubSub._dispatch

    async def connect_and_count(self: Any, ready: Any) -> None:
        self._connections = getattr(self, "_connections", 0) + 1
        await connect(self, ready)

    def dispatch_at_first(self: Any, kind: str, channel: str, data: bytes) -> None:
        if kind != "message" or self._connections == 1:
            dispatch(self, kind, channel, data)

    pubsub.PubSub._connect_and_receive = connect_and_count
    pubsub.PubSub._dispatch = dispatch_at_first


BREAKS: dict[str, tuple[str, Change]] = {
    "fence": ("app.store.journal", _without_fence),
    "claim": ("app.store.responses", _without_claim),
    "publish": ("workers.generation.journal", _publish_first),
    "ring": ("workers.generation.journal", _mute),
    "hear": ("app.streaming.pubsub", _deaf),
}


class _Changed(importlib.abc.Loader):
    """Another loader, and then the change."""

    def __init__(self, loader: importlib.abc.Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, change: Change) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.loader is not None
        spec.loader = _Changed(spec.loader, self._change)
        return spec


if (_chosen := os.environ.get("LONGHAUL_TEST_BREAK")) is not None:
    sys.meta_path.insert(0, _Finder(*BREAKS[_chosen]))
