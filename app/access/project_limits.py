"""What a project may use at most: how operators set it, within one change."""

from __future__ import annotations

from collections.abc import Mapping

from app.access.changes import AdministrationError, AuditType, Change
from app.protocol.limits import ALL_MODELS, LimitKind
from app.protocol.requests.bodies.organization import MAX_NAME_CHARS
from app.store.tenants import limits
from app.store.tenants.limits import LimitRow
from config.settings import MAX_LIMIT

MAX_LIMITS = 200
"""Limits of one project."""
LIMIT_PREFIX = "rl-"
LIMIT_FIELDS = {
    LimitKind.REQUESTS_PER_MINUTE: "max_requests_per_1_minute",
    LimitKind.TOKENS_PER_MINUTE: "max_tokens_per_1_minute",
}
"""The kinds of limit that OpenAI's admin API knows, by its names."""


def limit_id(model: str) -> str:
    """Returns the id of a project's limits of a model, which OpenAI's admin API has in one object."""
    return f"{LIMIT_PREFIX}{model}"


async def put_limits(change: Change, project: str, model: str, values: Mapping[LimitKind, int | None]) -> None:
    """Sets limits of a project that is locked, or new; None removes one. Raises AdministrationError."""
    for kind, value in values.items():
        _check_limit(kind, value, model)
        if kind is LimitKind.STORED_BYTES and model != ALL_MODELS:
            raise AdministrationError("what a project stores belongs to no model: set 'stored_bytes' for all models")
        if value is None:
            await limits.remove(change.connection, project, model, kind)
        elif not await limits.put(change.connection, LimitRow(project, model, kind, value), MAX_LIMITS):
            raise AdministrationError(f"the project has {MAX_LIMITS} limits, the most; remove some first")
    await _note_limits(change, project, model, values)


async def _note_limits(change: Change, project: str, model: str, values: Mapping[LimitKind, int | None]) -> None:
    requested = {LIMIT_FIELDS.get(kind, kind.value): value for kind, value in values.items()}
    await change.note(AuditType.RATE_LIMIT_UPDATED, limit_id(model), project, {"changes_requested": requested})


def _check_limit(kind: LimitKind, value: int | None, model: str) -> None:
    if value is not None and not 1 <= value <= MAX_LIMIT:
        raise AdministrationError(f"a limit is a number from 1 to {MAX_LIMIT}", LIMIT_FIELDS.get(kind))
    if kind is LimitKind.READS_PER_MINUTE and model != ALL_MODELS:
        raise AdministrationError("a read is of no model: 'reads_per_minute' is a limit on all of them together")
    if not 1 <= len(model) <= MAX_NAME_CHARS or not model.isprintable():
        raise AdministrationError(f"the name of a model has 1 to {MAX_NAME_CHARS} printable characters")
