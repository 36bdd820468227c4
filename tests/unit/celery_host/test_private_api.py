"""What our code uses of Celery, kombu and redis-py beyond their documentation: a new version must still have it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import celery.apps.worker as celery_worker
import pytest
from celery import Celery
from celery.events import EventDispatcher
from celery.worker import state as worker_state
from celery.worker.control import Panel
from celery.worker.request import Request, create_request_cls
from kombu import Consumer
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis

from workers.celery_host import connection
from workers.celery_host.connection import FastReconnectConnection
from workers.celery_host.fetch import BatchChannel, PlacesQoS
from workers.celery_host.program import WorkerProgram
from workers.celery_host.remote_control import TELLING


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (kombu_redis.Channel._brpop_start, ["self", "timeout"]),
        (kombu_redis.Channel._brpop_read, ["self", "options"]),
        (kombu_redis.Channel._flush_brpop_reauth, ["self"]),
        (kombu_redis.Channel._restore, ["self", "message", "leftmost"]),
        (kombu_redis.Channel._get_client, ["self"]),  # of the message template
        (kombu_redis.Transport._deliver, ["self", "message", "queue"]),
        (Consumer.add_queue, ["self", "queue"]),
        (Consumer.cancel_by_queue, ["self", "queue"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_kombu_still_has_the_methods_that_we_override_or_call(method: Any, expected: list[str]) -> None:
    assert parameters(method) == expected
    assert parameters(getattr(BatchChannel, method.__name__, method)) == expected


@pytest.mark.parametrize("name", ["_in_poll", "_brpop_sent_at"])
def test_kombu_still_reads_what_fetch_notes(name: str) -> None:
    """Nothing else would notice: kombu ends a wait that Redis does not answer by these."""
    assert f"self.{name} = " in inspect.getsource(kombu_redis.Channel._brpop_start)


def test_kombu_still_asks_a_channel_whether_it_returns_what_was_not_acknowledged() -> None:
    assert not BatchChannel.do_restore
    assert "self.channel.do_restore" in inspect.getsource(PlacesQoS.restore_unacked_once)


def test_kombu_still_waits_between_its_tries_as_our_connection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RECONNECT_SECONDS", 0.001)
    pauses: list[float] = []
    with FastReconnectConnection("redis://127.0.0.1:1/0") as made, pytest.raises(OperationalError):
        made.ensure_connection(lambda error, pause: pauses.append(pause), max_retries=3)
    assert pauses == [0.001] * 3


def test_kombu_still_closes_a_lost_channel_by_the_method_that_our_connection_overrides() -> None:
    made = FastReconnectConnection("memory://")
    channel = made.default_channel

    def close() -> None:
        closed.append(channel)
        raise AttributeError

    closed: list[Any] = []
    channel.close = close
    made.release()
    assert closed


def test_celery_still_hands_its_request_to_the_pool() -> None:
    """The pool gets the request as the owner of the callback, and runs its task with its arguments."""
    celery = Celery(set_as_current=False)
    handed: list[dict[str, Any]] = []

    class Pool:
        def apply_async(self, target: Any, **options: Any) -> None:
            handed.append(options)

    @celery.task(name="a task", throws=(ValueError,))
    async def task(response_id: str) -> str:
        return response_id

    message = SimpleNamespace(
        headers={"id": "resp_1", "task": "a task", "kwargsrepr": repr({"project": "team-a"})},
        payload=([], {"response_id": "resp_1"}, {}),
        body=b"",
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"routing_key": "model.demo@node#foreground"},
        properties={},
    )
    request = create_request_cls(Request, task, Pool(), "host", None, app=celery)(message, app=celery, task=task)
    request.execute_using_pool(Pool())
    (options,) = handed
    assert options["callback"].__self__ is request
    assert (request.id, list(request.args), request.kwargs) == ("resp_1", [], {"response_id": "resp_1"})
    assert request.delivery_info["routing_key"] == "model.demo@node#foreground"
    assert inspect.iscoroutinefunction(request.task.run)
    assert request.task.throws == (ValueError,)
    assert {"pid", "time_accepted"} <= set(parameters(request.on_accepted))
    assert len(parameters(request.on_success)) == 2 and "pool" in parameters(request.terminate)


@pytest.mark.parametrize("method", ["on_before_init", "prepare_args", "install_platform_tweaks", "start"])
def test_celerys_worker_still_has_the_methods_that_the_program_overrides(method: str) -> None:
    assert method in vars(WorkerProgram)
    assert hasattr(celery_worker.Worker, method)


def test_celery_still_has_the_state_that_the_remote_control_replaces() -> None:
    assert {"revoke", "shutdown", *TELLING} <= set(Panel.data)
    assert hasattr(worker_state.revoked, "maxlen") and hasattr(worker_state, "should_stop")


@pytest.mark.parametrize("name", ["_group_buffer", "buffer_limit", "on_send_buffered", "_outbound_buffer"])
def test_celerys_dispatcher_still_has_what_the_event_buffer_sets(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(EventDispatcher.__init__)
    assert f"self.{name}" in inspect.getsource(EventDispatcher)
