"""Messages to the broker in batches: one round trip for all that gathered while the batch before was under way.

kombu sends each message, and each event about it, by a round trip of its own, which costs more than all of Celery's
work on them. Here its channel writes into a pipeline, which is sent at the end. (kombu 5.7: whatever a Redis channel
does, it does on the client that `_create_client` returns. A queue's messages go to the anonymous exchange, so that
nothing has to be read on the way.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery

from app.protocol.message import Message

TASK = "responses.generate"
"""The one task: kwargs `response_id` and `model` (for operators to read), task id = response id."""


class Post:
    """One thread's connection to the broker; it is made at the first batch, and anew after an error."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery
        self._connection: Any = None
        self._pipeline: Callable[[], Any]
        self._producer: Any = None

    def send(self, messages: Sequence[Message]) -> None:
        """Sends all of them. Tries twice, and raises what the second try raises: then any of them may have arrived."""
        try:
            self._send(messages)
        except Exception:  # a connection that Redis has closed in the meantime shows like this
            self.close()
            self._send(messages)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _send(self, messages: Sequence[Message]) -> None:
        if self._connection is None:
            self._connect()
        with self._pipeline() as pipeline:
            self._producer.channel._create_client = lambda *_, **__: pipeline
            for message in messages:
                self._celery.send_task(
                    TASK,
                    kwargs={"response_id": message.response_id, "model": message.model},
                    task_id=message.response_id,
                    queue=message.queue,
                    priority=message.priority,
                    producer=self._producer,
                    retry=False,
                )
            pipeline.execute()

    def _connect(self) -> None:
        self._connection = self._celery.connection_for_write()
        channel = self._connection.channel()
        client = channel._create_client()
        self._pipeline = lambda: client.pipeline(transaction=False)
        self._producer = self._celery.amqp.Producer(channel, auto_declare=False)
