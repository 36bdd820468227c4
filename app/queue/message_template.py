"""What Celery sends for a task, repeated with other ids.

Celery and kombu take about 0.4 ms of CPU to write one message and the event about it, and every message of a model's
queue is the same but for its id. So they write one, here into memory, and it is taken as a form: wherever the id is,
another may stand. What else they change from message to message is known by name: the tag, and the event's time and
clock. A test holds that a filled form is what Celery would have sent. (kombu 5.7: whatever a Redis channel does, it
does on a client of the class that `_get_client` returns.)
"""

from __future__ import annotations

import base64
import time
import uuid
from typing import Any

import orjson
from celery import Celery
from celery.utils.time import utcoffset
from kombu.transport.redis import Channel, Transport

from app.queue.redis_commands import packed

TASK = "responses.generate"
"""The one task: kwargs `response_id` and `model` (for operators to read), task id = response id."""

_SALT = "0f1e2d3c4b5a6978"
_ID, _TAG, _BODY = (f"{name}{_SALT}" for name in ("id", "tag", "body"))
_NUMBERS = _TIME, _CLOCK, _OFFSET = tuple(f"{name}{_SALT}" for name in ("time", "clock", "offset"))


class _Recorder:
    """Stands in for a Redis client, and writes down what it is told to do."""

    def __init__(self) -> None:
        self.pushed: tuple[str, str]
        self.published: tuple[str, str]

    def transport(self) -> type[Transport]:
        """One whose clients are all this."""
        channel = type("Recorded", (Channel,), {"_get_client": lambda _: lambda **_: self})
        return type("Recording", (Transport,), {"Channel": channel})

    def ping(self) -> bool:
        return True

    def lpush(self, key: str, message: str) -> None:
        self.pushed = (key, message)

    def publish(self, channel: str, message: str) -> None:
        self.published = (channel, message)


class _Form:
    """JSON with places to fill in, and in it a body with more of them."""

    def __init__(self, message: str) -> None:
        parsed = orjson.loads(message)
        body = orjson.loads(base64.b64decode(parsed["body"]))
        if isinstance(body, dict):
            body |= {"timestamp": _TIME, "clock": _CLOCK, "utcoffset": _OFFSET}
        parsed["body"], parsed["properties"]["delivery_tag"] = _BODY, _TAG
        self._body, self._around = _with_places(body), _with_places(parsed)

    def filled(self, values: dict[bytes, bytes]) -> bytes:
        body = base64.b64encode(self._body % values)
        return self._around % {**values, b"body": body, b"tag": str(uuid.uuid4()).encode()}


def _with_places(message: Any) -> bytes:
    """For bytes' own formatting."""
    form = orjson.dumps(message).replace(b"%", b"%%")
    for place in (_ID, _TAG, _BODY, *_NUMBERS):
        written = f'"{place}"' if place in _NUMBERS else place
        form = form.replace(written.encode(), b"%%(%b)b" % place.removesuffix(_SALT).encode())
    return form


class MessageTemplate:
    """Messages of one model, queue and priority. Making it connects to nothing."""

    def __init__(self, celery: Celery, model: str, queue: str, priority: int) -> None:
        self._clock = celery.clock
        recorder = _recorded(celery, model, queue, priority)
        (key, message), (channel, event) = recorder.pushed, recorder.published
        self._key, self._message = key.encode(), _Form(message)
        self._channel, self._event = channel.encode(), _Form(event)

    def commands(self, response_id: str) -> tuple[bytes, bytes]:
        """The message for a worker, and the event by which operators see it."""
        numbers = {b"time": time.time(), b"clock": self._clock.forward(), b"offset": utcoffset()}
        values = {name: repr(number).encode() for name, number in numbers.items()}
        values[b"id"] = response_id.encode()
        message, event = self._message.filled(values), self._event.filled(values)
        return packed(b"LPUSH", self._key, message), packed(b"PUBLISH", self._channel, event)


def _recorded(celery: Celery, model: str, queue: str, priority: int) -> _Recorder:
    recorder = _Recorder()
    with celery.connection_for_write() as connection:
        connection.transport_cls = recorder.transport()
        celery.send_task(
            TASK,
            kwargs={"response_id": _ID, "model": model},
            task_id=_ID,
            queue=queue,
            priority=priority,
            producer=celery.amqp.Producer(connection.default_channel, auto_declare=False),
            retry=False,
            declare=(),  # a queue of Redis' begins with its first message
        )
    return recorder
