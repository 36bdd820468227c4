"""Flower with what it lacks: `celery -A app.queue.flower:flower_app flower`.

Flower 2.2 answers to every host name, and shows its `/metrics` to everybody.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from app.queue.celery_app import make_celery
from config.hosts import is_allowed_host
from config.logging import setup_logging
from config.settings import ConfigError, load_settings

PROBED = "/healthcheck"
"""What load balancers and Kubernetes ask under any host name; it says "OK", and no more."""
_NOT_OURS = "Flower is not reached by this host name; 'LONGHAUL_ALLOWED_HOSTS' lists the names that it answers to.\n"


def _ask_for_the_password_at_metrics() -> None:
    """Puts `/metrics`, which names workers and tasks, behind the password."""
    base: Any = import_module("flower.views.monitor").Metrics

    async def get(self: Any) -> None:
        _ = self.current_user  # Raises what Flower's other pages raise without the password.
        await base.get(self)

    import_module("flower.urls").handlers.insert(0, ("/metrics", type("Metrics", (base,), {"get": get})))


def _refuse_hosts_but(allowed: Collection[str]) -> None:
    """Answers requests for a host name that is not ours with 421, as the API does."""
    flower: Any = import_module("flower.app").Flower
    handler: Any = import_module("tornado.web").ErrorHandler
    find = flower.find_handler

    def prepare(self: Any) -> None:
        self.set_header("Content-Type", "text/plain")
        self.finish(_NOT_OURS)

    refusal = type("Refusal", (handler,), {"prepare": prepare})

    def find_handler(self: Any, request: Any, **options: Any) -> Any:
        if is_allowed_host(request.headers.get_list("Host"), allowed) or request.path.endswith(PROBED):
            return find(self, request, **options)
        return self.get_handler_delegate(request, refusal, {"status_code": 421})

    flower.find_handler = find_handler


def __getattr__(name: str) -> Any:
    """`flower_app`, made on access, not at import."""
    if name != "flower_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        settings = load_settings()
        celery = make_celery(settings)
    except ConfigError as error:
        raise SystemExit(f"longhaul: {error}") from None
    setup_logging(settings.log_level, settings.log_format, "flower")
    _ask_for_the_password_at_metrics()
    _refuse_hosts_but({settings.flower_host.lower(), *settings.allowed_hosts})
    return celery
