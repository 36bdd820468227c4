"""Flower with what it lacks: other host names are refused, and so is every call that changes something and is not ours.

Flower 2.2 answers to every host name, and its calls can send any task and any of Celery's commands.
"""

from __future__ import annotations

import asyncio
from typing import Any

import flower.urls
from flower.app import Flower
from flower.views.monitor import Healthcheck
from tornado.web import RequestHandler

from app.flower.follower import Follower
from app.flower.handlers import HANDLERS, WRITERS
from app.flower.service import FlowerService
from config.hosts import is_allowed_host
from config.settings import Settings

PROBED = Healthcheck
"""What load balancers and Kubernetes ask under any host name; it says "OK", and no more."""
READS = ("GET", "HEAD", "OPTIONS")
NOT_OURS = "Flower is not reached by this host name; 'LONGHAUL_ALLOWED_HOSTS' lists the names that it answers to.\n"
NOT_HERE = "Longhaul has no such control: Flower can cancel responses, and stop workers.\n"


class Refusal(RequestHandler):
    """Refuses a request before it is looked at."""

    def initialize(self, status: int, said: str) -> None:
        self._status, self._said = status, said

    def check_xsrf_cookie(self) -> None:
        """Nothing to check: nothing is done."""

    def prepare(self) -> None:
        self.set_status(self._status)
        self.set_header("Content-Type", "text/plain")
        self.finish(self._said)


class LonghaulFlower(Flower):  # type: ignore[misc]  # Flower has no types
    """Flower's web application."""

    settings_of_longhaul: Settings
    """`of` sets them."""

    @classmethod
    def of(cls, settings: Settings) -> type[LonghaulFlower]:
        """The class for Flower's command, which makes one."""
        if HANDLERS[0] not in flower.urls.handlers:
            flower.urls.handlers[:0] = HANDLERS
        return type("OurFlower", (cls,), {"settings_of_longhaul": settings})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        ours = self.settings_of_longhaul
        self._allowed = {ours.flower_host.lower(), *ours.allowed_hosts}
        self.service = FlowerService(ours)
        self.follower = Follower(self.service.db, self.events.state)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.io_loop.add_callback(self._follow)
        super().start()

    async def _follow(self) -> None:
        self._following = asyncio.create_task(self.follower.run(), name="follower")

    def find_handler(self, request: Any, **options: Any) -> Any:
        found = super().find_handler(request, **options)
        is_allowed = is_allowed_host(request.headers.get_list("Host"), self._allowed)
        if not is_allowed and found.handler_class is not PROBED:
            return self._refusal(request, 421, NOT_OURS)
        if request.method not in READS and not issubclass(found.handler_class, WRITERS):
            return self._refusal(request, 403, NOT_HERE)
        return found

    def _refusal(self, request: Any, status: int, said: str) -> Any:
        return self.get_handler_delegate(request, Refusal, {"status": status, "said": said})
