"""Flower's pages and calls where ours differ (flower 2.2)."""

from __future__ import annotations

from typing import Any

from flower.api import BaseApiHandler
from flower.views.auth import LoginHandler
from flower.views.monitor import Metrics
from flower.views.tasks import TasksDataTable
from flower.views.workers import WorkersView, WorkerView
from tornado.escape import xhtml_escape
from tornado.web import HTTPError, authenticated

from app.access.changes import Operator
from app.flower.desk import Refused
from app.operations.workers import SeenWorker, WorkerState
from app.queue.commands import Command
from app.queue.publisher import QueueUnavailable
from app.store.database import StoreUnavailable

READ_ONLY = "This Flower is read-only (FLOWER_READ_ONLY)."
COLUMNS = ("Worker", "Model", "State", "Slots", "Ahead", "Sent", "Tokens/s", "Device", "Unit")
_HIDDEN = (
    *("#worker-pool-restart", ".worker-control-group:has(#worker-pool-autoscale)", "#worker-tab-limits"),
    *("[id^=worker-cancel-consumer]", "div:has(> #worker-add-consumer)"),
)
"""Buttons of a worker's page that nothing here obeys."""
_STYLE = f"<style>{', '.join(_HIDDEN)} {{ display: none !important }}</style>"
_PANEL = """
<section class="workers-table-card mb-4" aria-label="Engines"><figure class="table-responsive mb-0">
<table id="engines" class="workers-table table table-hover align-middle w-100 mb-0"></table></figure></section>
"""
_SCRIPT = """
<script>
(function follow() {
  var prefix = document.getElementById("url_prefix").value.replace(/^\\/+|\\/+$/g, "");
  fetch((prefix && "/" + prefix) + "/longhaul/workers").then(function (answer) { return answer.text(); })
    .then(function (rows) { document.getElementById("engines").innerHTML = rows; })
    .catch(function () {}).then(function () { setTimeout(follow, 2000); });
})();
</script>
"""
_BADGES = {WorkerState.READY: "bg-success", WorkerState.LOST: "bg-danger", WorkerState.ABSENT: "bg-danger"}


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
        mark = b'<section class="workers-table-card"'
        return page.replace(mark, _PANEL.encode() + mark, 1).replace(b"</body>", _SCRIPT.encode() + b"</body>", 1)


class LonghaulWorker(WorkerView):  # type: ignore[misc]
    """A worker's page, with those buttons alone that do something."""

    def render_string(self, template: str, **values: Any) -> bytes:
        page: bytes = super().render_string(template, **values)
        return page.replace(b"</head>", _STYLE.encode() + b"</head>", 1)


class Engines(BaseApiHandler):  # type: ignore[misc]
    """The rows of the table of engines, as HTML."""

    @authenticated
    async def get(self) -> None:
        try:
            workers = await self.application.desk.workers()
        except StoreUnavailable:
            self.write(f'<tr><td colspan="{len(COLUMNS)}">Postgres is away.</td></tr>')
            return
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        rows = "".join(map(_row, workers))
        self.write(f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>")


def _row(seen: SeenWorker) -> str:
    worker = seen.row
    name, reason = xhtml_escape(worker.name), xhtml_escape(worker.drain_reason or "")
    badge = f'<span class="badge {_BADGES.get(seen.state, "bg-warning")}" title="{reason}">{seen.state}</span>'
    link = f'<a href="worker/{name}">{name}</a>'
    rest = (
        f"{worker.in_slots}/{worker.slots}",
        worker.ahead,
        worker.sent,
        seen.tokens_per_second,
        worker.device or "",
        worker.unit or worker.pid,
    )
    cells = (link, xhtml_escape(worker.model), badge, *(xhtml_escape(str(each)) for each in rest))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


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
    """Revoke and Terminate."""

    done = "Cancelled '{}'"

    async def press(self, name: str, by: Operator) -> None:
        await self.application.desk.cancel(name, by)
        await self.application.follower.look_at([name], at_once=True)


class Stop(Button):
    """Shut Down."""

    done = "'{}' drains, and then stops"

    async def press(self, name: str, by: Operator) -> None:
        await self.application.desk.command(Command.SHUTDOWN, name, by)


class Grow(Button):
    done = "'{}' may run more responses at once"
    command = Command.POOL_GROW

    async def press(self, name: str, by: Operator) -> None:
        n = self.get_argument("n", default=1, type=int)
        if not 1 <= n <= 1000:
            raise HTTPError(400, "'n' must be from 1 to 1000.")
        await self.application.desk.command(self.command, name, by, n=n)


class Shrink(Grow):
    done = "'{}' runs fewer responses at once"
    command = Command.POOL_SHRINK


HANDLERS = [
    (r"/", LonghaulWorkers),
    (r"/workers", LonghaulWorkers),
    (r"/worker/(.+)", LonghaulWorker),
    (r"/longhaul/workers", Engines),
    (r"/metrics", LockedMetrics),
    (r"/api/task/revoke/(.+)", Cancel),
    (r"/api/worker/shutdown/(.+)", Stop),
    (r"/api/worker/pool/grow/(.+)", Grow),
    (r"/api/worker/pool/shrink/(.+)", Shrink),
]
WRITERS = (Button, TasksDataTable, LoginHandler)
"""What answers a POST; the table of tasks is read by one."""
