"""What one API process takes from its clients, before anything is known of them, and what each request holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
ACCEPT_SECONDS = 30.0
"""How long a request waits to be accepted: as long as one that is accepted waits for a connection to Postgres."""
HEAD_SECONDS = 10.0
UPLOADS = 16
"""Files that one process receives at once. Each takes up to 4 MiB, and a connection to Postgres for
a part of the time."""
CONNECTIONS_PER_WEBSOCKET = 8
"""A WebSocket lasts for hours: of so many connections, one may be a WebSocket."""
ANSWER_BYTES = 512 * 1024
"""What one connection may have waiting without being counted: a page of events, and what was written before it."""

BOUNDS = "bounds"
"""The key of the process' bounds in the state of the lifespan, and so of every request."""
CONNECTION = "longhaul_connection"
"""The key of what a connection holds, in the state of each of its requests. Starlette's test client has none."""
_HOLDINGS = "longhaul_holdings"


@dataclass(slots=True)
class ProcessBounds:
    """The bounds and deadlines of one process. The lifespan makes it; connections and requests count in it."""

    head_seconds: float
    """Seconds until the head of a request is complete, from the connection or from the head's first byte."""
    body_seconds: float
    """Seconds until its body is complete, from the end of the head; a file has as many for each `body_bytes` of it."""
    body_bytes: int
    """The most bytes of a body that is no file."""
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
    uploads: Bound
    """Files from their first byte to their last."""

    @property
    def all(self) -> Sequence[Bound]:
        """For metrics."""
        return self.bodies, self.accepting, self.answers, self.connections, self.websockets, self.uploads

    @classmethod
    def of(cls, settings: Settings) -> ProcessBounds:
        shares, size = settings.asks_for_keys, settings.buffer_bytes
        every = partial(Bound, shares=shares, operators=True)  # What every request may need.
        accepted = max(ACCEPTED * settings.max_body_bytes, ACCEPTED_SMALL * SMALL_BYTES)
        return cls(
            head_seconds=HEAD_SECONDS,
            body_seconds=settings.body_seconds,
            body_bytes=settings.max_body_bytes,
            write_seconds=settings.write_seconds,
            bodies=every("large requests", size, BODY_BYTES, unit="bytes of "),
            accepting=every("accepted requests", accepted, unit="bytes of ", seconds=ACCEPT_SECONDS),
            connections=every("connections", settings.max_connections),
            websockets=Bound("WebSockets", settings.max_connections // CONNECTIONS_PER_WEBSOCKET, shares=shares),
            uploads=Bound("uploads", UPLOADS, shares=shares, seconds=ACCEPT_SECONDS),
            answers=every("answers", size, ANSWER_BYTES, unit="bytes of "),
        )


class RequestHoldings:
    """What one request holds, or the latest message of a WebSocket: its body, its turn to be accepted, its answer."""

    __slots__ = ("_accepting", "_answer", "_body", "_bounds", "_connection", "is_foreground", "project")

    def __init__(self, bounds: ProcessBounds, connection: Holding | None = None) -> None:
        self._bounds = bounds
        self._connection = connection
        self.project: str | None = None
        """Project of its key. None: an operator's key, or no key."""
        self.is_foreground = False
        """Whether its client waits for a response: a server that stops lets it."""
        self._body: Holding | None = None
        self._accepting: Holding | None = None
        self._answer: Holding | None = None

    def set_project(self, project: str | None) -> None:
        """The caller is known: the connection counts for its project from now on. Raises BoundReached."""
        if self._connection is not None:
            self._connection.give(project)
        self.project = project

    def body(self) -> Holding:
        """Returns the holding of the body, which `release_body` gives back."""
        if self._body is None:
            self._body = self._bounds.bodies.take(self.project, 0)
        return self._body

    async def accept(self, size: int) -> None:
        """Returns once the app may parse a body of so many bytes, or read. `release_body` gives it back.

        Raises BoundReached after ACCEPT_SECONDS.
        """
        self._accepting = await self.wait_to_accept(size)

    async def wait_to_accept(self, size: int) -> Holding:
        """`accept` for a message of a WebSocket: its holding is the caller's to give back."""
        return await self._bounds.accepting.wait(self.project, max(size, SMALL_BYTES))

    def hand_over(self, message: Holding) -> None:
        """The app gets a message of its WebSocket. It counts until `release_body`, or is the app's own with `take`."""
        self._body = message

    def take(self) -> Holding:
        """Returns the holding of the message that the app has just received. The app gives it back."""
        assert self._body is not None
        taken, self._body = self._body, None
        return taken

    def release_body(self) -> None:
        """The body is no longer in memory: the request is stored, or it was refused."""
        if self._body is not None:
            self._body.release()
        if self._accepting is not None:
            self._accepting.release()

    async def wait_for_answer(self, size: int) -> None:
        """Returns once the app may read a large answer to this request, which needs its body no longer.

        The answer counts until `release_answer`, or with its connection if its client does not take it at once. It
        takes the place of one that was waited for before.
        """
        self.release_body()
        self.release_answer()
        # Noted once there is room: a connection that ends meanwhile takes over and releases what is noted.
        self._answer = await self._bounds.answers.wait(self.project, size)

    def take_answer(self) -> Holding | None:
        """Returns what the request holds for its answer, if it does: the connection gives it back."""
        taken, self._answer = self._answer, None
        return taken

    def release_answer(self) -> None:
        """The client has the answer, or what it did not take counts with its connection."""
        if (held := self.take_answer()) is not None:
            held.release()


def holdings_of(scope: Mapping[str, Any]) -> RequestHoldings:
    """Returns the holdings of the request, and makes them if it had none."""
    state = scope["state"]
    found: RequestHoldings | None = state.get(_HOLDINGS)
    if found is None:
        found = state[_HOLDINGS] = RequestHoldings(state[BOUNDS], state.get(CONNECTION))
    return found


def known_holdings(scope: Mapping[str, Any] | None) -> RequestHoldings | None:
    """Returns the holdings of the request, if it has any."""
    found: RequestHoldings | None = (scope or {}).get("state", {}).get(_HOLDINGS)
    return found
