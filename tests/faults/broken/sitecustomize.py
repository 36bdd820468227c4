"""Switches off promises of the product, in a process that has this folder in PYTHONPATH.

LONGHAUL_TEST_BREAK names them, with commas (`tests.faults.breaks`). Python imports `sitecustomize` when it starts,
before any program. What keeps a promise is patched right after its module ran; nothing in the product knows of this.
A patch whose target is gone raises an AssertionError, so the process does not start (`test_checker` uses every patch).
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]


def _require(owner: Any, *names: str) -> None:
    for name in names:
        assert hasattr(owner, name), f"{owner.__name__} has no {name} any more: mend the patch that uses it"


def _rewrite(module: Any, name: str, *changes: tuple[str, str]) -> None:
    """Changes words of a statement: each pair has what must be there, and what takes its place."""
    statement = getattr(module, name)
    words = str(statement)
    for before, after in changes:
        assert before in words, f"{name} has no {before!r} any more: mend the patch"
        words = words.replace(before, after)
    setattr(module, name, words if isinstance(statement, str) else module.text(words))


def _without_fence(logs: Any) -> None:
    """Appends every chunk, whatever the status, attempt and owner of the row are, and overwrites what is there."""
    for name in ("_APPEND", "_APPEND_AND_END"):
        _rewrite(
            logs,
            name,
            (" AND b.attempt = l.attempt", ""),
            ("AND b.worker = l.worker", ""),
            ("WHERE l.status = 'in_progress'", ""),
            ("ORDER BY r.id FOR SHARE OF r", ""),
            ("UNION ALL SELECT response_id, first, bytes FROM known WHERE is_same", ""),
            ("WHERE b.response_id NOT IN (SELECT response_id FROM known)", _OVERWRITE),
        )


_OVERWRITE = """
    ON CONFLICT (response_id, first) DO UPDATE SET last = excluded.last, final = excluded.final,
        frames = excluded.frames, size = excluded.size
"""


def _deaf(runs: Any) -> None:
    """Nothing tells a run that its response belongs to another attempt: it could stop before it writes once more."""
    _require(runs.ActiveRuns, "fence")
    runs.ActiveRuns.fence = lambda self, attempts: None


def _without_claim(claims: Any) -> None:
    """Any message makes its worker the owner, whatever the row says."""
    empty = "".join(f"{name} = NULL, " for name in ("finished_at", "output", "usage", "error", "incomplete_details"))
    _rewrite(
        claims,
        "_CLAIM",
        (_SET, f"SET {empty} log = 'live', status = "),
        ("AND (\n        l.status", "AND (true OR l.status"),
    )


def _without_lines(claims: Any) -> None:
    """Whoever takes over the response of a line makes it an ordinary one."""
    columns = ("batch_id", "batch_line", "custom_id")
    forgotten = "".join(f"{name} = CASE l.attempt WHEN 0 THEN r.{name} END, " for name in columns)
    _rewrite(claims, "_CLAIM", (_SET, f"SET {forgotten} status = "))


_SET = "SET\n        status = "


def _write_whatever_others_wrote(writer: Any) -> None:
    """Takes a batch for what it was before its results were read, and waits until others have read them, too."""
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
    _require(journal.Journal, "_commit", "publish")
    commit = journal.Journal._commit

    async def publish_and_commit(self: Any, entries: Sequence[Any]) -> Any:
        self.publish(*(entry.chunk for entry in entries))
        await asyncio.sleep(0.02)
        return await commit(self, entries)

    journal.Journal._commit = publish_and_commit


PATCHES: dict[str, dict[str, Patch]] = {
    "fence": {"app.store.responses.logs": _without_fence, "workers.generation.run": _deaf},
    "claim": {"app.store.responses.claims": _without_claim},
    "publish-after-commit": {"workers.generation.writing.journal": _publish_before_commit},
    "line": {"app.store.responses.claims": _without_lines},
    "write-once": {"app.batches.writer": _write_whatever_others_wrote},
}
"""Promise -> the modules that keep it, and what breaks it there."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and patches them when they were executed."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if (patch := self._patches.get(fullname)) is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


for _promise in filter(None, os.environ.get("LONGHAUL_TEST_BREAK", "").split(",")):
    sys.meta_path.insert(0, _Finder(PATCHES[_promise]))
