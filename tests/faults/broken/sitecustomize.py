"""Switches off one promise of the product, in a process that has this folder in PYTHONPATH.

LONGHAUL_TEST_BREAK names the promise (`tests.faults.breaks`). Python imports `sitecustomize` when it starts, before any
program. What keeps the promise is patched right after its module's execution; nothing in the product knows of this.
A patch whose target is gone raises an AssertionError, so the process does not start
(tests/unit/faults/test_broken_promises.py tries every patch).
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]


def _require(owner: Any, *names: str) -> None:
    """Asserts that a module or class has these attributes, or sets them on its instances."""
    for name in names:
        present = hasattr(owner, name) or f"self.{name}" in inspect.getsource(owner)
        assert present, f"{owner.__name__} has no {name} any more: mend the patch that uses it"


def _without_fence(journal: Any) -> None:
    """Appends every chunk, whatever the status, attempt and owner of the row are, and overwrites what is there."""
    _require(journal, "_APPEND", "_APPEND_AND_END")
    for name in ("_APPEND", "_APPEND_AND_END"):
        setattr(journal, name, _unfenced(getattr(journal, name)))


def _deaf(runs: Any) -> None:
    """Nothing tells a run that its response belongs to another attempt: it could stop before it writes once more."""
    _require(runs, "ActiveRuns")
    _require(runs.ActiveRuns, "fence")
    runs.ActiveRuns.fence = lambda self, attempts: None


_OVERWRITE = """
    ON CONFLICT (response_id, first) DO UPDATE SET last = excluded.last, final = excluded.final,
        frames = excluded.frames, size = excluded.size
"""


def _unfenced(statement: str) -> str:
    for condition, replacement in (
        (" AND b.attempt = l.attempt", ""),
        ("AND b.worker = l.worker", ""),
        ("WHERE l.status = 'in_progress'", ""),
        ("ORDER BY r.id FOR SHARE OF r", ""),
        ("UNION ALL SELECT response_id, first, bytes FROM known WHERE is_same", ""),
        ("WHERE b.response_id NOT IN (SELECT response_id FROM known)", _OVERWRITE),
    ):
        assert condition in statement, f"the append has no {condition!r} any more: mend the patch"
        statement = statement.replace(condition, replacement)
    return statement


def _without_claim(claims: Any) -> None:
    """Any message makes its worker the owner, whatever the row says."""
    from sqlalchemy import func

    _require(claims, "claim_all", "responses", "update")
    from app.store.responses.lookup import RESPONSE_COLUMNS
    from app.store.rows import response_row

    table = claims.responses

    async def claim(db: Any, response_id: str, worker: str) -> Any:
        statement = (
            claims.update(table)
            .where(table.c.id == response_id)
            .values(
                status="in_progress",
                attempt=table.c.attempt + 1,
                worker=worker,
                started_at=func.coalesce(table.c.started_at, func.now()),
                finished_at=None,
                output=None,
                usage=None,
                error=None,
                incomplete_details=None,
                log="live",
            )
            .returning(*RESPONSE_COLUMNS)
        )
        async with db.autocommit() as connection:
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else response_row(row)

    async def claim_all(db: Any, wanted: Sequence[tuple[str, str]], *_: Any, **__: Any) -> list[Any]:
        return [await claim(db, response_id, worker) for response_id, worker in wanted]

    claims.claim_all = claim_all


def _without_lines(claims: Any) -> None:
    """Whoever takes over the response of a line makes it an ordinary one."""
    _require(claims, "_CLAIM", "text")
    claim, before = str(claims._CLAIM), "SET\n        status = "
    assert before in claim, f"the claim has no {before!r} any more: mend the patch"
    columns = ("batch_id", "batch_line", "custom_id")
    forgotten = "".join(f"{name} = CASE l.attempt WHEN 0 THEN r.{name} END, " for name in columns)
    claims._CLAIM = claims.text(claim.replace(before, f"SET {forgotten} status = "))


def _write_whatever_others_wrote(writer: Any) -> None:
    """Takes a batch for what it was before its results were read, and waits until others have read them, too."""
    _require(writer, "ResultWriter", "rows")
    _require(writer.ResultWriter, "finish")
    _require(writer.rows, "find", "lock")
    rows, finish = writer.rows, writer.ResultWriter.finish
    read: dict[str, Any] = {}

    class Rows:
        def __getattr__(self, name: str) -> Any:
            return getattr(rows, name)

        async def find(self, db: Any, project: str | None, batch_id: str) -> Any:
            read[batch_id] = row = await rows.find(db, project, batch_id)
            return row

        async def lock(self, connection: Any, batch_id: str) -> Any:
            await asyncio.sleep(1)
            current = await rows.lock(connection, batch_id)
            return read.pop(batch_id, current)

    async def finish_what_is_there(self: Any, batch_id: str, status: Any) -> Any:
        read.pop(batch_id, None)
        return await finish(self, batch_id, status)

    writer.rows, writer.ResultWriter.finish = Rows(), finish_what_is_there


def _publish_before_commit(journal: Any) -> None:
    """Publishes each chunk before Postgres has it."""
    _require(journal, "Journal", "asyncio")
    _require(journal.Journal, "_commit", "publish")
    commit = journal.Journal._commit

    async def publish_and_commit(self: Any, entries: Sequence[Any]) -> Any:
        self.publish(*(entry.chunk for entry in entries))
        await journal.asyncio.sleep(0.02)
        return await commit(self, entries)

    journal.Journal._commit = publish_and_commit


def _publish_until_redis_is_away(pubsub: Any) -> None:
    """Nothing more is published once Redis was away."""
    _require(pubsub, "PubSub")
    _require(pubsub.PubSub, "publish", "_can_publish")
    publish = pubsub.PubSub.publish

    async def publish_while_redis_is_there(self: Any, chunks: Iterable[Any]) -> None:
        if self._can_publish:
            await publish(self, chunks)

    pubsub.PubSub.publish = publish_while_redis_is_there


def _receive_on_first_connection(pubsub: Any) -> None:
    """Readers receive nothing once the first connection to Redis is gone."""
    _require(pubsub, "PubSub")
    _require(pubsub.PubSub, "_connect_and_receive", "_dispatch")
    connect, dispatch = pubsub.PubSub._connect_and_receive, pubsub.PubSub._dispatch

    async def connect_and_count(self: Any, ready: Any) -> None:
        self._connections = getattr(self, "_connections", 0) + 1
        await connect(self, ready)

    def dispatch_on_first(self: Any, kind: str, channel: str, data: bytes) -> None:
        if kind != "message" or self._connections == 1:
            dispatch(self, kind, channel, data)

    pubsub.PubSub._connect_and_receive = connect_and_count
    pubsub.PubSub._dispatch = dispatch_on_first


PATCHES: dict[str, dict[str, Patch]] = {
    "fence": {"app.store.responses.logs": _without_fence, "workers.generation.runs": _deaf},
    "claim": {"app.store.responses.claims": _without_claim},
    "publish-after-commit": {"workers.generation.journal": _publish_before_commit},
    "publish-after-reconnect": {"app.streaming.pubsub": _publish_until_redis_is_away},
    "receive-after-reconnect": {"app.streaming.pubsub": _receive_on_first_connection},
    "line": {"app.store.responses.claims": _without_lines},
    "write-once": {"app.batches.writer": _write_whatever_others_wrote},
}
"""Promise -> the modules that keep it, and what breaks it there."""


class _PatchingLoader(importlib.abc.Loader):
    """Loads a module with its own loader, then patches it."""

    def __init__(self, loader: importlib.abc.Loader, patch: Patch) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if (patch := self._patches.get(fullname)) is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.loader is not None
        spec.loader = _PatchingLoader(spec.loader, patch)
        return spec


if (_promise := os.environ.get("LONGHAUL_TEST_BREAK")) is not None:
    sys.meta_path.insert(0, _Finder(PATCHES[_promise]))
