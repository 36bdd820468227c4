"""Flower's pages and calls where ours differ (flower 2.2)."""

from __future__ import annotations

import re
from copy import copy
from typing import Any

from flower.api import BaseApiHandler
from flower.views.auth import LoginHandler
from flower.views.monitor import Metrics
from flower.views.tasks import TasksDataTable, TaskView
from flower.views.workers import WorkersView, WorkerView
from tornado.web import HTTPError, authenticated

from app.access.changes import Operator
from app.flower.engines import AWAY, table
from app.flower.service import Refused
from app.queue.commands import Command
from app.queue.publisher import QueueUnavailable
from app.store.database import StoreUnavailable

READ_ONLY = "This Flower is read-only (FLOWER_READ_ONLY)."
_HIDDEN = (
    *("#worker-pool-restart", ".worker-control-group:has(#worker-pool-autoscale)", "#worker-tab-limits"),
    *("[id^=worker-cancel-consumer]", "div:has(> #worker-add-consumer)"),
    "section[aria-labelledby=pool-options-heading]",
)
"""What nothing here obeys on a worker's page, and what says nothing of it: the sizes of Celery's pool."""
_UNSAID = (
    "retries",
    "exchange",
    "routing_key",
    "clock",
    "timestamp",
    "client",
    "children",
    "root",
    "root_id",
    "parent",
    "parent_id",
)
"""Fields of a task that are Celery's alone: the message of an attempt is new, and no attempt is one of its retries."""
_STYLE = f"<style>{', '.join(_HIDDEN)} {{ display: none !important }}</style>"
_PANEL = """
<section class="workers-table-card mb-4" aria-label="Engines"><figure class="table-responsive mb-0">
<table id="engines" class="workers-table table table-hover align-middle w-100 mb-0"></table></figure>
<p class="text-body-secondary small px-3 py-2 mb-0" id="engines-time"></p></section>
"""
_SCRIPT = """
<script>
(function follow() {
  var prefix = document.getElementById("url_prefix").value.replace(/^\\/+|\\/+$/g, "");
  var page = document.getElementById("workername");
  var only = page ? "?worker=" + encodeURIComponent(page.textContent) : "";
  fetch((prefix && "/" + prefix) + "/longhaul/workers" + only).then(function (answer) {
    if (!answer.ok) throw new Error(answer.status);
    return answer.text();
  }).then(function (rows) {
    document.getElementById("engines").innerHTML = rows;
    document.getElementById("engines-time").textContent =
      "As Postgres had it at " + new Date().toISOString().slice(11, 19) + " UTC.";
  }).catch(function () {}).then(function () { setTimeout(follow, 2000); });
})();
</script>
"""


def _with_engines(page: bytes, mark: bytes) -> bytes:
    """The page with the table of engines before this mark. While Flower is away, the time under it stands still."""
    return page.replace(mark, _PANEL.encode() + mark, 1).replace(b"</body>", _SCRIPT.encode() + b"</body>", 1)


class LockedMetrics(Metrics):  # type: ignore[misc]  # Flower has no types
    """`/metrics`, which names workers and tasks, behind the password."""

    async def get(self) -> None:
        _ = self.current_user  # Raises what Flower's other pages raise without the password.
        await super().get()


class LonghaulWorkers(WorkersView):  # type: ignore[misc]
    """The list of workers, and above it their engines as Postgres knows them."""

    @classmethod
    def _as_dict(cls, worker: Any) -> dict[str, Any]:
        """One that is offline runs nothing, whatever its last sign of life said."""
        shown: dict[str, Any] = super()._as_dict(worker)
        return shown if worker.alive else {**shown, "active": 0}

    def render_string(self, template: str, **values: Any) -> bytes:
        page: bytes = super().render_string(template, **values)
        page = page.replace(b">Status</th>", b">Signs of life</th>", 1)
        return _with_engines(page, b'<section class="workers-table-card"')


class LonghaulWorker(WorkerView):  # type: ignore[misc]
    """A worker's page: its engine, and those buttons alone that do something."""

    def render_string(self, template: str, **values: Any) -> bytes:
        page: bytes = super().render_string(template, **values)
        page = page.replace(b">Pool size<", b">Responses at once: so many more, or fewer<", 1)
        page = _with_engines(page, b'<div class="worker-tabs">')
        return page.replace(b"</head>", _STYLE.encode() + b"</head>", 1)


class LonghaulTask(TaskView):  # type: ignore[misc]
    """A response's page. Its button says what it does."""

    def format_task(self, task: Any) -> Any:
        """Without what says nothing of a response. A message that is newer than the first start has no time either:
        it is that of a later attempt, and seems to have been sent after its task was started."""
        shown = copy(super().format_task(task))
        sent = [each for each in (shown.sent, shown.received) if each]
        is_later = bool(sent and shown.started and min(sent) > shown.started)
        for name in (*_UNSAID, *(("sent", "received") if is_later else ())):
            setattr(shown, name, None)
        return shown

    def render_string(self, template: str, **values: Any) -> bytes:
        page: bytes = super().render_string(template, **values)
        return re.sub(rb'(id="task-(?:terminate|revoke)")>\w+<', rb"\1>Cancel this response<", page)


class Engines(BaseApiHandler):  # type: ignore[misc]
    """The rows of the table of engines, as HTML."""

    @authenticated
    async def get(self) -> None:
        try:
            workers, pauses = await self.application.service.workers()
        except StoreUnavailable:
            self.write(AWAY)
            return
        self.write(table(workers, pauses, self.get_argument("worker", default=None)))


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
        await self.application.service.command(Command.SHUTDOWN, name, by)


class Grow(Button):
    done = "'{}' may run more responses at once"
    command = Command.POOL_GROW

    async def press(self, name: str, by: Operator) -> None:
        n = self.get_argument("n", default=1, type=int)
        if not 1 <= n <= 1000:
            raise HTTPError(400, "'n' must be from 1 to 1000.")
        await self.application.service.command(self.command, name, by, n=n)


class Shrink(Grow):
    done = "'{}' runs fewer responses at once"
    command = Command.POOL_SHRINK


HANDLERS = [
    (r"/", LonghaulWorkers),
    (r"/workers", LonghaulWorkers),
    (r"/worker/(.+)", LonghaulWorker),
    (r"/task/(.+)", LonghaulTask),
    (r"/longhaul/workers", Engines),
    (r"/metrics", LockedMetrics),
    (r"/api/task/revoke/(.+)", Cancel),
    (r"/api/worker/shutdown/(.+)", Stop),
    (r"/api/worker/pool/grow/(.+)", Grow),
    (r"/api/worker/pool/shrink/(.+)", Shrink),
]
WRITERS = (Button, TasksDataTable, LoginHandler)
"""What answers a POST; the table of tasks is read by one."""
