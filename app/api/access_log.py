"""One line of the log for each request, and for each message of a WebSocket, at its end.

The line has no path and no query: a path may be anything, and a query may have a secret in it. The ids of the request
and its response are what every line is about (config/log_context.py).
"""

from __future__ import annotations

import logging

from app.access.caller import Caller

log = logging.getLogger("longhaul.http")

_PROBES = "/health/"


def switch(*, on: bool) -> None:
    """Whether lines are logged; those of probes only at level DEBUG."""
    log.setLevel(logging.NOTSET if on else logging.WARNING)


def note(method: str, route: str, status: int, seconds: float, caller: Caller | None, event: str | None = None) -> None:
    """A request has ended after so many seconds. `event` is the type of a WebSocket's message."""
    level = logging.DEBUG if route.startswith(_PROBES) else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields: dict[str, object] = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
    if event is not None:
        fields["event"] = event
    if caller is not None:
        fields |= {"project": caller.project} if caller.project is not None else {}
        fields |= {"key_id": caller.key_id} if caller.key_id is not None else {}
    # As `log.log` does, but it looks for the line of code that called it, which nobody wants to know here.
    log.handle(log.makeRecord(log.name, level, "", 0, "request", (), None, extra={"fields": fields}))
