"""The scopes of a project's key, as the admin API names them."""

from __future__ import annotations

from collections.abc import Sequence

from app.access.caller import PROJECT_SCOPES, Scope
from app.protocol.requests.bodies.organization import READ_ONLY


def scopes_of(sent: Sequence[str]) -> frozenset[Scope]:
    """An empty list means all, as in OpenAI's API."""
    named = frozenset(Scope.READ if name == READ_ONLY else Scope(name) for name in sent)
    return named or PROJECT_SCOPES
