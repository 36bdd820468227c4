"""What one API process takes from its clients, before anything is known of them, and what it holds at the moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import Scope

from app.access.caller import Caller
from app.bounds import Bound, Holding
from config.settings import Settings

BODY_BYTES = 64 * 1024
"""What each request may have of its body without being counted, so that small ones pass while large ones wait."""
ACCEPTED = 4
"""Requests of the largest size that are accepted at once. Each takes seven times its bytes."""
ACCEPTED_SMALL = 512
"""Small requests that are accepted at once: two batches of inserts. Each takes up to 200 KiB."""
SMALL_BYTES = 64 * 1024
"""What a small request counts as meanwhile."""
READ_BYTES = 8 * SMALL_BYTES
"""What a request that reads counts as meanwhile, so 64 at once: no batch makes more of them cheaper."""
CONNECTIONS_PER_WEBSOCKET = 8
"""A WebSocket lasts for hours: of so many connections, one may be a WebSocket."""
ANSWER_BYTES = 512 * 1024
"""What one connection may have waiting without being counted: a page of events, and what was written before it."""

CONNECTION = "longhaul_connection"
"""The key of what the request's connection holds, in its state."""
CALLER = "caller"
"""The key of the request's caller in its state."""
_BODY = "longhaul_body"
_ACCEPTING = "longhaul_accepting"
_ANSWER = "longhaul_answer"
_FOREGROUND = "longhaul_foreground"


@dataclass(slots=True)
class Limits:
    """The limits of one process. The lifespan makes it; connections and readers of bodies count in it."""

    head_seconds: float
    """Seconds until the head of a request is complete, from the connection or from the head's first byte."""
    body_seconds: float
    """Seconds until its body is complete, from the end of the head."""
    write_seconds: float
    """Seconds that a client may take no byte of an answer that waits for it."""
    bodies: Bound
    accepting: Bound
    """Requests, from before they are parsed until they are stored, and reads until their answers begin: each takes
    several times its bytes meanwhile, and the event loop's time. The others wait as bytes, and projects take turns."""
    answers: Bound
    """Large answers, from before they are read until their clients have taken them."""
    connections: Bound
    """WebSockets included. Each counts for its client's address, and from its first request on for the request's
    project."""
    websockets: Bound

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        shares, size = settings.asks_for_keys, settings.buffer_bytes
        every = partial(Bound, shares=shares, operators=True)  # What every request may need.
        accepted = max(ACCEPTED * settings.max_body_bytes, ACCEPTED_SMALL * SMALL_BYTES)
        return cls(
            head_seconds=settings.head_seconds,
            body_seconds=settings.body_seconds,
            write_seconds=settings.write_seconds,
            bodies=every("large requests", size, BODY_BYTES, unit="bytes of "),
            accepting=every("accepted requests", accepted, unit="bytes of "),
            connections=every("connections", settings.max_connections),
            websockets=Bound("WebSockets", settings.max_connections // CONNECTIONS_PER_WEBSOCKET, shares=shares),
            answers=every("answers", size, ANSWER_BYTES, unit="bytes of "),
        )


def project_of(scope: Mapping[str, Any]) -> str | None:
    """Returns the project of the request's caller; None before authentication, and for operators."""
    caller: Caller | None = scope.get("state", {}).get(CALLER)
    return None if caller is None else caller.project


def give_connection(scope: Mapping[str, Any], project: str | None) -> None:
    """The request's connection counts for the project of its caller from now on. Raises BoundReached."""
    connection: Holding | None = scope["state"].get(CONNECTION)
    if connection is not None:  # Starlette's test client has none.
        connection.give(project)


def hold_body(scope: Scope) -> Holding:
    """Returns the holding of this request's body, which `release_body` gives back."""
    state = scope["state"]
    holding: Holding = state.setdefault(_BODY, state["limits"].bodies.take(project_of(scope), 0))
    return holding


async def wait_to_accept(scope: Scope, size: int) -> Holding:
    """Returns once the app may parse a body, or a message, of so many bytes. The caller gives it back."""
    accepting: Bound = scope["state"]["limits"].accepting
    return await accepting.wait(project_of(scope), max(size, SMALL_BYTES))


async def hold_accepting(scope: Scope, size: int) -> None:
    """`wait_to_accept` for a request; `release_body` gives it back."""
    scope["state"][_ACCEPTING] = await wait_to_accept(scope, size)


def hand_over(scope: Mapping[str, Any], message: Holding) -> None:
    """The app gets a message of its WebSocket, which counts until `release_body`, or the app's own with `take_over`."""
    scope["state"][_BODY] = message


def take_over(scope: Scope) -> Holding:
    """Returns the holding of the message that the app has just received. The app gives it back."""
    holding: Holding = scope["state"].pop(_BODY)
    return holding


def release_body(scope: Mapping[str, Any]) -> None:
    """The body is no longer in memory: the request is stored, or it was refused."""
    state = scope.get("state", {})
    for held in (_BODY, _ACCEPTING):
        holding: Holding | None = state.get(held)
        if holding is not None:
            holding.release()


async def wait_for_answer(scope: Scope, size: int) -> None:
    """Returns once the app may read a large answer to this request, which needs its body no longer.

    The answer counts until `release_answer`, or with its connection if its client does not take it at once. It takes
    the place of one that was waited for before.
    """
    release_body(scope)
    release_answer(scope)
    answers: Bound = scope["state"]["limits"].answers
    # Noted once there is room: a connection that ends meanwhile takes over and releases what is noted.
    scope["state"][_ANSWER] = await answers.wait(project_of(scope), size)


def take_over_answer(scope: Mapping[str, Any]) -> Holding | None:
    """Returns what the request holds for its answer, if it does: the connection gives it back."""
    holding: Holding | None = scope.get("state", {}).pop(_ANSWER, None)
    return holding


def release_answer(scope: Mapping[str, Any]) -> None:
    """The client has the answer, or what it did not take counts with its connection."""
    if (holding := take_over_answer(scope)) is not None:
        holding.release()


def mark_foreground(scope: Scope) -> None:
    """The client of this request waits for a response: a server that stops lets it."""
    scope["state"][_FOREGROUND] = True


def is_foreground(scope: Mapping[str, Any]) -> bool:
    return _FOREGROUND in scope.get("state", {})
