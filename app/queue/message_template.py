"""The template of Celery's messages, filled in with other ids.

Celery's `send_task` takes about 0.4 ms of CPU for one message and its event
(docs/internals/decisions/messages.md). All messages are alike but for the id, the list, what Flower shows, the
tag, and the event's time and clock. So Celery sends one into memory, and its bytes become the template. A test compares
a filled template with what Celery sends. This relies on kombu's Redis channel (kombu 5.7), which runs every command on
a client of the class that `_get_client` returns.
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

from app.queue.message import TASK, Message

_SALT = "0f1e2d3c4b5a6978"
_ID, _LIST, _MODE, _OWNER, _TAG, _BODY = (f"{name}{_SALT}" for name in ("id", "list", "mode", "owner", "tag", "body"))
_NUMBERS = _TIME, _CLOCK, _OFFSET = tuple(f"{name}{_SALT}" for name in ("time", "clock", "offset"))


class _Recorder:
    """Stands in for a Redis client, and keeps the arguments of its calls."""

    def __init__(self) -> None:
        self.pushed: tuple[str, str]
        self.published: tuple[str, str]

    def transport(self) -> type[Transport]:
        """A transport whose only client is this recorder."""
        channel = type("Recorded", (Channel,), {"_get_client": lambda _: lambda **_: self})
        return type("Recording", (Transport,), {"Channel": channel})

    def ping(self) -> bool:
        return True

    def lpush(self, key: str, message: str) -> None:
        self.pushed = (key, message)

    def publish(self, channel: str, message: str) -> None:
        self.published = (channel, message)


class _JsonTemplate:
    """A JSON envelope with fields to fill in, around a base64 body with more of them."""

    def __init__(self, message: str) -> None:
        parsed = orjson.loads(message)
        body = orjson.loads(base64.b64decode(parsed["body"]))
        if isinstance(body, dict):
            body |= {"timestamp": _TIME, "clock": _CLOCK, "utcoffset": _OFFSET}
        parsed["body"], parsed["properties"]["delivery_tag"] = _BODY, _TAG
        self._body, self._envelope = _with_fields(body), _with_fields(parsed)

    def filled(self, values: dict[bytes, bytes]) -> bytes:
        body = base64.b64encode(self._body % values)
        return self._envelope % {**values, b"body": body, b"tag": str(uuid.uuid4()).encode()}


def _with_fields(message: Any) -> bytes:
    """JSON for the `%` operator of bytes."""
    template = orjson.dumps(message).replace(b"%", b"%%")
    for field in (_ID, _LIST, _MODE, _OWNER, _TAG, _BODY, *_NUMBERS):
        written = f'"{field}"' if field in _NUMBERS else field
        template = template.replace(written.encode(), b"%%(%b)b" % field.removesuffix(_SALT).encode())
    return template


class MessageTemplate:
    """`channel` is that of the events for Flower. Connects to nothing."""

    def __init__(self, celery: Celery) -> None:
        self._clock = celery.clock
        recorder = _record(celery)
        (_, message), (self.channel, event) = recorder.pushed, recorder.published
        self._message, self._event = _JsonTemplate(message), _JsonTemplate(event)

    def filled(self, message: Message) -> tuple[bytes, bytes]:
        """The message for a worker, and the event by which Flower shows it."""
        numbers = {b"time": time.time(), b"clock": self._clock.forward(), b"offset": utcoffset()}
        values = {name: repr(number).encode() for name, number in numbers.items()}
        values[b"id"] = message.response_id.encode()
        values[b"list"] = orjson.dumps(message.list)[1:-1]
        values[b"mode"] = orjson.dumps(message.shown_mode)[1:-1]
        values[b"owner"] = orjson.dumps(message.shown_owner)[1:-1]
        return self._message.filled(values), self._event.filled(values)


def _record(celery: Celery) -> _Recorder:
    recorder = _Recorder()
    with celery.connection_for_write() as connection:
        connection.transport_cls = recorder.transport()
        celery.send_task(
            TASK,
            kwargs={"response_id": _ID},
            argsrepr=_MODE,
            kwargsrepr=_OWNER,
            task_id=_ID,
            queue=_LIST,
            producer=celery.amqp.Producer(connection.default_channel, auto_declare=False),
            retry=False,
            declare=(),  # a Redis list needs no declaration
        )
    return recorder
