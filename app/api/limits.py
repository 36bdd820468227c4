"""What one API process takes from its clients, before anything is known of them, and what it holds at the moment."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from app.budget import Budget, Lease
from config.settings import Settings

ANSWER_BYTES = 512 * 1024
"""What one connection may have waiting without being counted: a page of events, and what was written before it."""

_BODY = "longhaul_body"


@dataclass(slots=True)
class Limits:
    """The limits of one process. The lifespan makes it; connections and readers of bodies count in it."""

    max_connections: int
    max_websockets: int
    head_seconds: float
    """Seconds until the head of a request is complete, from the connection or from the head's first byte."""
    body_seconds: float
    """Seconds until its body is complete, from the end of the head."""
    write_seconds: float
    """Seconds that a client may take no byte of an answer that waits for it."""
    bodies: Budget
    answers: Budget
    """What clients have not taken yet of their answers."""
    websockets: int = 0
    """WebSockets that are open now."""

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            max_connections=settings.max_connections,
            max_websockets=settings.max_websockets,
            head_seconds=settings.head_seconds,
            body_seconds=settings.body_seconds,
            write_seconds=settings.write_seconds,
            bodies=Budget(settings.buffer_bytes),
            answers=Budget(settings.buffer_bytes, ANSWER_BYTES),
        )


def lease_body(scope: Scope) -> Lease:
    """Returns the lease of this request's body, which `release_body` gives back."""
    state = scope["state"]
    lease: Lease = state.setdefault(_BODY, state["limits"].bodies.lease())
    return lease


def release_body(scope: Scope) -> None:
    """The body is no longer in memory: the request is stored, or it was refused."""
    lease: Lease | None = scope.get("state", {}).get(_BODY)
    if lease is not None:
        lease.release()
