"""Settings that went."""

from __future__ import annotations

from collections.abc import Mapping

_CONSTANT = "unset it; the default is the only value now"
GONE: Mapping[str, str] = {
    "LONGHAUL_FAST_PATHS": "unset it; messages are sent and fetched in one way",
    "LONGHAUL_EVENT_INTERVAL_SECONDS": "unset it; a smaller LONGHAUL_EVENTS_PER_SECOND makes fewer, larger events",
    "LONGHAUL_EVENT_PER_TOKEN": "unset it; tokens that are sent together are one event",
    "LONGHAUL_LOST_SECONDS": _CONSTANT,
    "LONGHAUL_MAINTENANCE_SECONDS": _CONSTANT,
    "LONGHAUL_READER_POLL_SECONDS": _CONSTANT,
    "LONGHAUL_MAX_READERS": "unset it; LONGHAUL_MAX_CONNECTIONS bounds readers, too",
    "LONGHAUL_MAX_WEBSOCKETS": "unset it; an eighth of LONGHAUL_MAX_CONNECTIONS may be WebSockets",
    "LONGHAUL_QUEUE_WINDOW": "unset it; a worker is sent as many responses as it has slots, and what is about to end",
    "LONGHAUL_WORKER_CONTEXT_BYTES": "unset it; LONGHAUL_MAX_CONTEXT_BYTES bounds what a worker holds, too",
}
"""Variable -> what to do instead. No process starts while one of them is set."""


def refusal(environ: Mapping[str, str]) -> str | None:
    """Returns why no process starts with this environment, or None. An empty variable counts as unset."""
    for name, value in environ.items():
        if value and (instead := GONE.get(name.upper())) is not None:
            return f"{name} is no setting any more: {instead}"
    return None
