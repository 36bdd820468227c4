"""Messages to the broker in batches: what gathers while one batch is under way goes in one write after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import redis.asyncio
from celery import Celery
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from app.batching import Batcher
from app.protocol.text import one_line
from app.queue.message import Message
from app.queue.message_template import MessageTemplate
from app.queue.redis_commands import send

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 2.0
MAX_BATCH = 200
"""So many messages at a time, but for those that were posted together."""


class QueueUnavailable(Exception):
    """Redis did not take the message in time. It may have arrived all the same."""


class Publisher:
    """One connection to the broker; it is made at the first batch, and anew after an error."""

    def __init__(self, celery: Celery, url: str) -> None:
        self._celery = celery
        self._client = redis.asyncio.from_url(
            url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._templates: dict[tuple[str, str, int], MessageTemplate] = {}
        self._batches = Batcher(self._send, max_items=MAX_BATCH, weight=len, shared_errors=(QueueUnavailable,))

    def send(self, messages: Sequence[Message]) -> asyncio.Future[None]:
        """Done once they are sent; cancelled before its turn, they are not. Nobody has to wait for it.

        QueueUnavailable, after a second try: then any of them may have arrived.
        """
        sent = self._batches.submit(messages)
        sent.add_done_callback(_heard)
        return sent

    async def close(self) -> None:
        """Forgets what was not sent yet."""
        await self._batches.close()
        await self._client.aclose()

    async def _send(self, batch: Sequence[Sequence[Message]]) -> Sequence[None]:
        commands = [self._template(each).commands(each.response_id) for each in chain.from_iterable(batch)]
        try:
            await send(self._client, list(chain.from_iterable(commands)), REPLY_SECONDS)
        except Exception as error:  # redis-py's, asyncio's, the system's, uvloop's: whatever it was, Redis is away
            raise QueueUnavailable(one_line(error)) from error
        return [None] * len(batch)

    def _template(self, message: Message) -> MessageTemplate:
        place = (message.model, message.queue, message.priority)
        if (template := self._templates.get(place)) is None:
            template = self._templates[place] = MessageTemplate(self._celery, *place)
        return template


def _heard(sent: asyncio.Future[None]) -> None:
    """asyncio would complain of an error that nobody has waited for."""
    if not sent.cancelled():
        sent.exception()
