"""Attacks on the admin API by somebody who has an admin key: what it takes at most, and what it finds at most."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import text

from app.access.caller import OPERATOR_SCOPES
from tests.attacks.attack import Attack
from tests.attacks.memory import LARGE
from tests.attacks.target import Json, Target

_ALL = "/v1/organization"
_PROJECTS = f"{_ALL}/projects"
_USAGE = f"{_ALL}/usage/completions?start_time=0&bucket_width=1d&limit=31"
_GROUPS = "".join(f"&group_by={name}" for name in ("project_id", "user_id", "api_key_id", "model", "service_tier"))
_REFUSED = ("after", "limit", "name", "model_ids", "project_ids", "start_time", "expires_in_seconds")
_TOO_LARGE = frozenset({"200", "404", "400 max_requests_per_1_minute", *(f"400 {name}" for name in _REFUSED)})
_FILL = text(
    """
    INSERT INTO projects (id, name, created_at)
    SELECT 'proj_filler_' || lpad(n::text, 6, '0'), repeat('n', 200), now() FROM generate_series(1, :count) n
    """
)
_EMPTY = text("DELETE FROM projects WHERE id LIKE 'proj\\_filler\\_%'")


@contextlib.asynccontextmanager
async def _operator(target: Target) -> AsyncIterator[Target]:
    """The same server as the holder of an admin key sees it."""
    async with target.projects.administration() as admin:
        key = await admin.create_key(None, "operator", OPERATOR_SCOPES)
        async with target.caller(key.secret) as operator:
            yield operator
        await admin.revoke_key(key.row.id)


async def admin_values(target: Target, count: int) -> None:
    """Fields, filters and pages at their largest, and one beyond."""
    own = f"{_PROJECTS}/{target.projects.attacker.project}"
    names = [f"model-{number}" for number in range(1001)]
    bodies: list[tuple[str, Json]] = [
        (_PROJECTS, {"name": "n" * 201}),
        (_PROJECTS, {"name": "n" * 7_000_000}),
        (own, {"name": "n" * 200}),
        (f"{own}/model_permissions", {"mode": "allow_list", "model_ids": names[:1000]}),
        (f"{own}/model_permissions", {"mode": "allow_list", "model_ids": names}),
        (f"{own}/model_permissions", {"mode": "allow_list", "model_ids": ["m" * 7_000_000]}),
        (f"{own}/service_accounts", {"name": "a", "expires_in_seconds": 10**30}),
        (f"{own}/rate_limits/rl-{target.model}", {"max_requests_per_1_minute": 2**53}),
    ]
    queries = [
        f"{_PROJECTS}?limit=100",
        f"{_PROJECTS}?limit=101",
        f"{_PROJECTS}?after={'x' * 8000}",
        f"{_PROJECTS}/{'p' * 8000}",
        f"{_USAGE}{_GROUPS}",
        _USAGE + "".join(f"&project_ids=p{number}" for number in range(100)),
        _USAGE + "".join(f"&project_ids=p{number}" for number in range(101)),
        f"{_ALL}/usage/completions?start_time=0&bucket_width=1m&limit=1440",
        f"{_ALL}/usage/completions?start_time={10**30}",
        f"{_ALL}/audit_logs?limit=100" + "".join(f"&actor_ids[]=k{number}" for number in range(100)),
    ]
    asked: list[tuple[str, str, dict[str, Any]]] = [
        *(("POST", path, {"json": body}) for path, body in bodies),
        *(("GET", path, {}) for path in queries),
    ]
    async with _operator(target) as operator:

        async def ask(number: int) -> None:
            method, path, options = asked[number % len(asked)]
            await operator.send(method, path, **options)

        await operator.repeat(count * len(asked), ask, parallel=8)


async def admin_pages(target: Target, count: int) -> None:
    """Thousands of projects, which are all listed page by page, and used by nobody."""
    async with target.projects.database() as db:
        async with db.autocommit() as connection:
            await connection.execute(_FILL, {"count": count})
        try:
            async with _operator(target) as operator:
                await operator.repeat(4, lambda _: _list_all(operator))
        finally:
            async with db.autocommit() as connection:
                await connection.execute(_EMPTY)


async def _list_all(operator: Target) -> None:
    after = ""
    while True:
        page = await operator.send("GET", f"{_PROJECTS}?limit=100&include_archived=true{after}")
        if not page.get("has_more"):
            return
        after = f"&after={page['last_id']}"


ATTACKS = (
    Attack(
        "admin-values",
        "admin API: largest values",
        admin_values,
        20,
        1,
        _TOO_LARGE,
        demand=LARGE,
    ),
    Attack("admin-pages", "admin API: long lists", admin_pages, 8000, 300, {"200"}),
)
