"""Drives real `celery worker` processes with our pool, task and remote control; only the runner pretends."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from app.queue.celery_app import make_celery
from app.queue.commands import Command, signed
from app.queue.message import TASK, Message, Priority
from app.queue.publisher import TaskQueue
from config.settings import load_settings
from tests.support.celery_processes import QUEUE
from tests.support.queue_app import KEY, STORE
from tests.support.waiting import until_sync


async def get_key() -> bytes:
    return KEY


class Bench:
    """Sends and revokes responses, and reads the log of the pretended runners."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.settings = load_settings(REDIS_URL=url)
        self.celery = make_celery(self.settings)
        self.broker = redis.Redis.from_url(url, decode_responses=True)
        self.redis = redis.Redis.from_url(url.removesuffix("/7") + f"/{STORE}", decode_responses=True)
        self.flush()

    def flush(self) -> None:
        self.broker.flushdb()
        self.redis.flushdb()

    def close(self) -> None:
        self.broker.close()
        self.redis.close()

    def break_connections(self) -> None:
        """Closes all connections but those of the pretended store (CLIENT KILL), as a failover does."""
        for client in self.broker.client_list():
            if client["db"] == "7":
                self.broker.client_kill_filter(_id=client["id"], skipme=True)

    def send(
        self,
        *ids: str,
        priority: int = Priority.FOREGROUND,
        project: str = "default",
        node: str = "own",
        foreground_place: bool = False,
    ) -> None:
        """Sends responses to the worker of this node."""
        of = partial(Message, sent_to=node, foreground_place=foreground_place)
        messages = [of(each, "demo", QUEUE, priority, project) for each in ids]

        async def all_of_them() -> None:
            queue = TaskQueue(self.settings)
            await asyncio.gather(*(queue.enqueue(message) for message in messages))
            await queue.close()

        asyncio.run(all_of_them())

    def cancel(self, *ids: str) -> None:
        """Cancels as the API does."""
        asyncio.run(self.queue().revoke(*ids))

    def count(self, key: str, project: str, sealed: str) -> None:
        """Asks a worker for a count as the API does."""

        async def ask() -> None:
            queue = self.queue()
            await queue.ask_to_count("own@test", key, project, sealed)
            await queue.close()

        asyncio.run(ask())

    def queue(self) -> TaskQueue:
        return TaskQueue(self.settings, get_key)

    @property
    def log(self) -> list[str]:
        return self.redis.lrange("log", 0, -1)

    def wait_for_log(self, *lines: str) -> None:
        until_sync(lambda: set(lines) <= set(self.log), what=lambda: f"{lines} in {self.log}")

    def wait_for_cancelled(self, *ids: str) -> None:
        until_sync(lambda: set(ids) <= self.redis.smembers("cancelled"), what=f"{ids} cancelled")

    def wait_until_ended(self, taken: int = 0, active: int = 0) -> None:
        """Waits until the worker has taken at least so many messages, and runs no more than `active` of them."""

        def done() -> bool:
            stats = self.ask("stats")
            return stats["total"].get(TASK, 0) >= taken and stats["pool"]["active"] == active

        until_sync(done)

    def queued(self) -> int:
        return sum(self.broker.llen(name) for name in self.broker.keys(f"{QUEUE}*"))

    def active(self, workers: int) -> list[int]:
        """How many responses each of so many workers runs."""
        with self.celery.connection_for_write() as connection:
            replies = self.celery.control.broadcast(
                "stats", reply=True, limit=workers, timeout=10, connection=connection
            )
        stats = {name: reply for each in replies for name, reply in each.items()}
        return [stats[name]["pool"]["active"] for name in sorted(stats)]

    def ask(self, command: str, **arguments: Any) -> Any:
        """A remote control command and the worker's reply; one that needs a signature gets it."""
        if command in set(Command):
            arguments = self.signed(Command(command), **arguments)
        return self.ask_unsigned(command, **arguments)

    def signed(self, command: Command, worker: str = "own@test", **arguments: Any) -> dict[str, Any]:
        return signed(KEY, command, arguments, worker, uuid4().hex)

    def ask_unsigned(self, command: str, **arguments: Any) -> Any:
        # A connection of its own: an earlier test may have broken those that kombu keeps in this process.
        with self.celery.connection_for_write() as connection:
            (reply,) = self.celery.control.broadcast(
                command, arguments=arguments, reply=True, limit=1, timeout=10, connection=connection
            )
        return next(iter(reply.values()))
