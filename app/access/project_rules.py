"""What operators may say of a project: its models and MCP servers, its best service tier, its weight."""

from __future__ import annotations

from collections.abc import Collection

from app.access.changes import AdministrationError
from app.protocol.limits import SERVICE_TIERS
from app.protocol.requests.bodies.organization import MAX_DAYS, MAX_NAME_CHARS
from app.store.tenants.projects import ALL, NOT

MAX_PERMITTED = 1000
"""Models, or MCP servers, that the list of one project names."""
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""Bounds of a project's weight; others weigh 1."""


def check_days(days: int, param: str) -> None:
    if not 0 <= days <= MAX_DAYS:
        raise AdministrationError(f"a number of days is from 0 to {MAX_DAYS}, not {days}", param)


def check_tier(tier: str) -> None:
    if tier not in SERVICE_TIERS:
        raise AdministrationError(f"a service tier is one of {', '.join(SERVICE_TIERS)}, not '{tier}'")


def check_weight(weight: float) -> None:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise AdministrationError(f"a weight is a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {weight:g}")


def check_permitted(*lists: Collection[str]) -> None:
    for names in lists:
        if len(names) > MAX_PERMITTED:
            raise AdministrationError(f"at most {MAX_PERMITTED} names can be permitted, but there are {len(names)}")
        if not all(1 <= len(name.removeprefix(NOT)) <= MAX_NAME_CHARS and name.isprintable() for name in names):
            raise AdministrationError(f"a permitted name has 1 to {MAX_NAME_CHARS} printable characters")
        if ALL not in names and (denied := sorted(name for name in names if name.startswith(NOT))):
            raise AdministrationError(f"'{denied[0]}' takes a name from '{ALL}', which is not permitted")
