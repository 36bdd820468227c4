"""`longhaul ready`: the answer to a probe on the same machine, without the imports of what it asks about."""

from __future__ import annotations

from http.client import HTTPConnection

from app.local.errors import LocalError
from app.local.ports import local_host
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
    connection = HTTPConnection(local_host(settings.host), settings.port, timeout=SECONDS)
    try:
        connection.request("GET", "/health/ready")
        status = connection.getresponse().status
    except OSError as error:
        raise LocalError(f"the API cannot be reached ({type(error).__name__})") from None
    finally:
        connection.close()
    if status != 200:
        raise LocalError(f"the API is not ready (status {status})")
