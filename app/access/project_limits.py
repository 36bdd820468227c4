"""How operators set a project's limits, within one change."""

from __future__ import annotations

from collections.abc import Mapping

from app.access.changes import AdministrationError, AuditType, Change
from app.protocol.limits import ALL_MODELS, LimitKind
from app.store.tenants import limits
from app.store.tenants.limits import LimitRow

MAX_LIMITS = 200
"""Limits of one project."""
LIMIT_PREFIX = "rl-"
LIMIT_FIELDS = {
    LimitKind.REQUESTS_PER_MINUTE: "max_requests_per_1_minute",
    LimitKind.TOKENS_PER_MINUTE: "max_tokens_per_1_minute",
}
"""The kinds of limit that OpenAI's admin API knows, by its names."""
_OF_NO_MODEL = (LimitKind.READS_PER_MINUTE, LimitKind.STORED_BYTES)


def limit_id(model: str) -> str:
    """Returns the id of a project's limits of a model, which OpenAI's admin API has in one object."""
    return f"{LIMIT_PREFIX}{model}"


async def put_limits(change: Change, project: str, model: str, values: Mapping[LimitKind, int | None]) -> None:
    """Sets limits of a project that is locked, or new; None removes one. Raises AdministrationError."""
    for kind, value in values.items():
        if kind in _OF_NO_MODEL and model != ALL_MODELS:
            raise AdministrationError(f"'{kind.value}' is a limit on all models together, and on no single one")
        if value is None:
            await limits.remove(change.connection, project, model, kind)
        elif not await limits.put(change.connection, LimitRow(project, model, kind, value), MAX_LIMITS):
            raise AdministrationError(f"the project has {MAX_LIMITS} limits, the most; remove some first")
    requested = {LIMIT_FIELDS.get(kind, kind.value): value for kind, value in values.items()}
    await change.note(AuditType.RATE_LIMIT_UPDATED, limit_id(model), project, {"changes_requested": requested})
