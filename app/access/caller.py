"""The caller of a request, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from app.store.tables import DEFAULT_PROJECT


class Scope(Enum):
    """What an API key allows."""

    RESPONSES = "responses"
    """Create, read, cancel and delete responses and conversations; manage webhooks, and read events."""
    BATCHES = "batches"
    """The same for batches."""
    FILES = "files"
    """The same for files."""
    READ = "read"
    """Read everything of the project, and change nothing."""
    OPERATOR = "operator"
    """See and steer the work of all projects."""
    ADMIN = "admin"
    """Manage projects, keys and limits."""


PROJECT_SCOPES = frozenset({Scope.RESPONSES, Scope.BATCHES, Scope.FILES, Scope.READ})
"""The scopes of keys that belong to a project; the others belong to the operators."""
OPERATOR_SCOPES = frozenset(Scope) - PROJECT_SCOPES


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of one request."""

    project: str | None
    """None: an operator, or an unknown caller."""
    scopes: frozenset[Scope]
    key_id: str | None = None
    """None: no key was asked for."""

    @property
    def own_project(self) -> str:
        """The project whose responses the caller sees: that of its key."""
        assert self.project is not None, "the scopes of a key without a project allow no such request"
        return self.project


def ip_address_or_none(sent: str | None) -> str | None:
    """Returns the IP address, or None if it is none: a proxy may name whatever it likes."""
    try:
        return str(ip_address(sent or ""))
    except ValueError:
        return None


ANYBODY = Caller(DEFAULT_PROJECT, frozenset(Scope))
"""Every caller, if no key is asked for (`LONGHAUL_AUTH=open`)."""
STRANGER = Caller(None, frozenset())
"""A caller without a key, where one may be left out."""
