"""Taking messages from a real Redis, several at a time: which ones, in which order, and what returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from kombu import Consumer, Producer, Queue

from app.queue.celery_app import make_celery
from app.queue.publisher import LIST_SECONDS
from config.settings import load_settings
from tests.support.celery_processes import own_database
from workers.celery_host.connection import FastReconnectConnection
from workers.celery_host.fetch import MAX_MESSAGES, BatchFetchConnection


class Taker:
    """A consumer like a worker's. Each `take` is one reply of Redis, with up to MAX_MESSAGES messages."""

    def __init__(self, url: str, *queues: str) -> None:
        options = make_celery(load_settings(REDIS_URL=url)).conf.broker_transport_options
        self.connection = BatchFetchConnection(url, transport_options=options)
        self.channel = self.connection.default_channel
        self.channel.free_places = lambda: 100
        self._taken: list[str] = []
        self.consumer = Consumer(self.channel, [Queue(name, routing_key=name) for name in queues], accept=["json"])
        self.consumer.register_callback(self._note)
        self.consumer.consume()

    def _note(self, body: str, message: Any) -> None:
        message.ack()
        if body == "bad":
            raise ValueError(body)
        self._taken.append(body)

    def send(self, *messages: str, queue: str = "one") -> None:
        with FastReconnectConnection(self.connection.as_uri(include_password=True)) as connection:
            connection.transport_options = self.connection.transport_options
            producer = Producer(connection.default_channel, auto_declare=False)
            for message in messages:
                producer.publish(message, routing_key=queue, serializer="json")

    def ask(self) -> None:
        """Asks Redis, which has no message yet."""
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=0.01)

    def take(self) -> list[str]:
        """The messages of the next reply."""
        self._taken = []
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=3)
        return self._taken


@pytest.fixture
def broker(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_database(redis_url), decode_responses=True) as broker:
        broker.flushdb()
        yield broker
        broker.flushdb()


@pytest.fixture
def taking(redis_url: str, broker: redis.Redis) -> Iterator[Callable[..., Taker]]:
    made: list[Taker] = []

    def taking(*queues: str) -> Taker:
        made.append(Taker(own_database(redis_url), *(queues or ("one",))))
        return made[-1]

    yield taking
    for taker in made:
        taker.connection.release()


def numbers(start: int, stop: int) -> list[str]:
    return [str(number) for number in range(start, stop)]


def test_waiting_messages_are_taken_in_their_order_and_several_at_a_time(taking: Callable[..., Taker]) -> None:
    taker = taking()
    taker.send(*numbers(0, 2 * MAX_MESSAGES + 1))
    taken = [taker.take() for _ in range(3)]
    assert [len(each) for each in taken] == [MAX_MESSAGES, MAX_MESSAGES, 1]
    assert [message for each in taken for message in each] == numbers(0, 2 * MAX_MESSAGES + 1)


def test_a_message_that_arrives_while_the_worker_waits_is_taken_at_once(taking: Callable[..., Taker]) -> None:
    taker = taking()
    taker.ask()
    taker.send("late")
    assert taker.take() == ["late"]


def test_a_message_that_fails_does_not_lose_the_others_of_its_reply(
    taking: Callable[..., Taker], broker: redis.Redis
) -> None:
    taker = taking()
    taker.send("1", "bad", "2")
    with pytest.raises(ValueError, match="bad"):
        taker.connection.drain_events(timeout=3)
    assert taker._taken == ["1", "2"]
    broker.lpush("one", "no JSON")
    taker.send("3")
    with pytest.raises(ValueError, match="invalid literal"):
        taker.connection.drain_events(timeout=3)
    assert taker._taken == ["1", "2", "3"]


def test_messages_that_reach_a_cancelled_consumer_return_to_the_queue(
    taking: Callable[..., Taker], broker: redis.Redis
) -> None:
    taker, other = taking(), taking()
    taker.ask()
    taker.consumer.cancel()
    taker.send("1", "2")
    taker.connection.release()
    assert 0 < broker.ttl("one") <= LIST_SECONDS, "nobody may come to take them"
    found: list[str] = []
    while len(found) < 2:
        found += other.take()
    assert sorted(found) == ["1", "2"]
