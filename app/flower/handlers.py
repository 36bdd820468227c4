"""Flower's calls where ours differ (flower 2.2); its pages are as they come."""

from __future__ import annotations

from flower.api import BaseApiHandler
from flower.views.auth import LoginHandler
from flower.views.monitor import Metrics
from flower.views.tasks import TasksDataTable
from tornado.web import HTTPError, authenticated

from app.access.changes import Operator
from app.flower.service import Refused
from app.queue.publisher import QueueUnavailable
from app.store.database import StoreUnavailable

READ_ONLY = "This Flower is read-only (FLOWER_READ_ONLY)."


class LockedMetrics(Metrics):  # type: ignore[misc]  # Flower has no types
    """`/metrics`, which names workers and tasks, behind the password."""

    async def get(self) -> None:
        _ = self.current_user  # Raises what Flower's other pages raise without the password.
        await super().get()


class Button(BaseApiHandler):  # type: ignore[misc]
    """A call that changes something."""

    done = ""

    @authenticated
    async def post(self, name: str) -> None:
        if self.application.options.read_only:
            raise HTTPError(403, READ_ONLY)
        try:
            await self.press(name, Operator(address=self.request.remote_ip))
        except Refused as refused:
            raise HTTPError(409, str(refused)) from None
        except StoreUnavailable:
            raise HTTPError(503, "Postgres is away, which has every response. Try again.") from None
        except QueueUnavailable as error:
            raise HTTPError(503, f"The worker cannot be reached: {error}.") from None
        self.write({"message": self.done.format(name)})

    async def press(self, name: str, by: Operator) -> None:
        raise NotImplementedError


class Cancel(Button):
    """Cancel this response: Flower's Revoke and Terminate."""

    done = "Cancelled '{}'"

    async def press(self, name: str, by: Operator) -> None:
        await self.application.service.cancel(name, by)
        await self.application.follower.look_at([name], at_once=True)


class Stop(Button):
    """Shut Down."""

    done = "'{}' drains, and then stops"

    async def press(self, name: str, by: Operator) -> None:
        await self.application.service.stop(name, by)


HANDLERS = [
    (r"/metrics", LockedMetrics),
    (r"/api/task/revoke/(.+)", Cancel),
    (r"/api/worker/shutdown/(.+)", Stop),
]
WRITERS = (Button, TasksDataTable, LoginHandler)
"""Handlers that answer a POST; Flower's page of tasks reads its table by one."""
