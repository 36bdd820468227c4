"""`longhaul ready`: the answer to a probe on the same machine, without the imports of what it asks about."""

from __future__ import annotations

from app.local.errors import LocalError
from app.local.ports import probe
from config.settings import ConfigError, Settings
from config.worker_readiness import is_ready, waits_for

SECONDS = 3.0
"""How long the API may take."""


def check_worker(settings: Settings) -> None:
    """Raises LocalError if the worker that writes the ready file is not ready, and ConfigError if none is named."""
    if settings.ready_file is None:
        raise ConfigError("LONGHAUL_READY_FILE is not set; set it for the worker and for this command")
    if not is_ready(settings.ready_file):
        reason = waits_for(settings.ready_file)
        raise LocalError(f"the worker is not ready: {reason}" if reason else "the worker is not ready")


def check_api(settings: Settings) -> None:
    """Raises LocalError if the API would refuse background work."""
    answer = probe(settings.host, settings.port, "/health/ready", SECONDS)
    if answer is None:
        raise LocalError(f"the API cannot be reached: nothing answers HTTP on port {settings.port}")
    if (status := answer[0]) != 200:
        raise LocalError(f"the API is not ready (status {status})")
