"""Events reach their endpoints: signed, at least once, whoever dies and however bad the endpoint is."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import Any
from unittest.mock import patch

import pytest
import redis

from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.sealing import SealedKind
from app.store.tables import DEFAULT_PROJECT
from app.store.webhooks import deliveries, endpoints
from app.streaming.pubsub import PubSub
from app.webhooks import deliverer as module
from app.webhooks import sender
from app.webhooks.deliverer import Deliverer
from app.webhooks.signing import secret_of
from tests.integration.store.common import answered, sql
from tests.support.little_web import Answer, LittleWeb, redirect
from tests.support.player import Player
from tests.support.rows import alive, queued
from tests.support.waiting import until
from tests.support.webhooks import LOOPBACK, Receiver, deliverer, delivering, ended, endpoint, make_due, rows


@pytest.fixture
def web() -> Iterator[LittleWeb]:
    with LittleWeb() as running:
        yield running


async def settled(db: Database, count: int, **where: str) -> list[Any]:
    """Waits until so many deliveries have ended."""

    async def found() -> list[Any] | None:
        all_rows = [row for row in await rows(db, **where) if row.status != "pending"]
        return all_rows if len(all_rows) >= count else None

    return await until(found, what=f"{count} deliveries that ended")


async def attempted(db: Database, count: int = 1, **where: str) -> list[Any]:
    async def found() -> list[Any] | None:
        all_rows = [row for row in await rows(db, **where) if len(row.attempts) >= count]
        return all_rows or None

    return await until(found, what=f"{count} attempts")


async def all_attempted(db: Database, count: int) -> bool:
    return len([row for row in await rows(db) if row.attempts]) == count


async def test_an_ending_is_delivered_signed_and_its_response_can_be_read_by_then(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    receiver = Receiver(web)
    await endpoint(db, receiver.url)
    async with delivering(deliverer(db, pubsub)):
        response_id = (await answered(db, "x", background=True)).row.id
        (row,) = await settled(db, 1)
    assert receiver.forged == [] and list(receiver.got.values()) == [1]
    (event,) = receiver.events
    assert (event["type"], event["data"]) == ("response.completed", {"id": response_id})
    assert (row.status, [each["status_code"] for each in row.attempts]) == ("delivered", [200])
    assert row.attempts[0]["body"] == "thanks" and row.attempts[0]["error"] is None


async def test_a_published_ending_rings_and_no_poll_is_needed(db: Database, pubsub: PubSub, web: LittleWeb) -> None:
    receiver = Receiver(web)
    await endpoint(db, receiver.url)
    with patch.object(module, "POLL_SECONDS", 3600.0):
        made = deliverer(db, pubsub)
        await made.deliver()  # it listens from now on
        assert made._doorbell is not None
        await made._doorbell.wait_until_confirmed()
        async with delivering(made):
            await alive(db)
            await Player(db, pubsub).answer("x", response_id=await queued(db, background=True))
            await settled(db, 1)
    assert sum(receiver.got.values()) == 1


async def test_without_an_endpoint_nothing_rings(db: Database, pubsub: PubSub, services: Any) -> None:
    valkey = redis.Redis.from_url(services.redis_url)
    made = deliverer(db, pubsub)
    await made.deliver()
    before = valkey.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
    await pubsub.tell_ends("resp_1")
    assert valkey.info("commandstats")["cmdstat_publish"]["calls"] == before + 1
    await made.close()
    valkey.close()


async def test_what_fails_is_tried_again_with_the_same_id_by_the_schedule(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    receiver = Receiver(web)
    receiver.status = 500
    await endpoint(db, receiver.url)
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1)
        (row,) = await attempted(db)
        assert row.status == "pending" and (row.due_at - row.created_at).total_seconds() > 4
        receiver.status = 200
        await make_due(db)
        (row,) = await settled(db, 1)
    assert [each["status_code"] for each in row.attempts] == [500, 200]
    assert receiver.tried == {row.event_id: 2} and receiver.got == {row.event_id: 1}


async def test_a_process_that_dies_between_send_and_note_is_followed_by_a_second_delivery_with_the_same_id(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    receiver = Receiver(web)
    await endpoint(db, receiver.url)
    await ended(db, 1)
    stopped = asyncio.Event()

    async def die(*_: Any) -> None:
        stopped.set()
        await asyncio.sleep(3600)

    with patch.object(deliveries, "note", die), patch.object(module, "CLOSE_SECONDS", 0.0):
        async with delivering(deliverer(db, pubsub)):
            await stopped.wait()
    (row,) = await rows(db)
    assert (row.status, row.attempts) == ("pending", []) and receiver.got == {row.event_id: 1}
    await sql(db, "UPDATE webhook_deliveries SET due_at = now()")  # the lease ends
    async with delivering(deliverer(db, pubsub)):
        await settled(db, 1)
    assert receiver.got == {row.event_id: 2} and receiver.forged == []


class Hanging:
    """A server that accepts, and says nothing; notes how many hang at once."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                self.held.append(self._socket.accept()[0])
        except OSError:
            pass

    def close(self) -> None:
        for each in (self._socket, *self.held):
            each.close()


async def test_an_endpoint_that_hangs_holds_four_and_delays_nobody(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    hanging, receiver = Hanging(), Receiver(web)
    await endpoint(db, hanging.url, name="hangs")
    await endpoint(db, receiver.url, name="works")
    with patch.object(module, "CLOSE_SECONDS", 0.0):
        async with delivering(deliverer(db, pubsub)):
            await ended(db, 50)
            await settled(db, 50, endpoint="we_works")
            assert len(hanging.held) == deliveries.ENDPOINT_AT_ONCE
    hanging.close()
    assert {row.status for row in await rows(db, endpoint="we_hangs")} == {"pending"}


async def test_an_endpoint_that_says_nothing_in_time_has_failed(db: Database, pubsub: PubSub) -> None:
    hanging = Hanging()
    await endpoint(db, hanging.url)
    await ended(db, 1)
    with patch.object(sender, "SECONDS", 0.2):
        async with delivering(deliverer(db, pubsub)):
            (row,) = await attempted(db)
    hanging.close()
    assert row.attempts[0]["status_code"] is None and "within" in row.attempts[0]["error"]


async def test_of_ten_megabytes_two_thousand_bytes_are_read(db: Database, pubsub: PubSub, web: LittleWeb) -> None:
    web.answers["/large"] = Answer(b"a\0" * 5_000_000)
    await endpoint(db, f"{web.url}/large")
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1)
        (row,) = await settled(db, 1)
    assert row.status == "delivered" and row.attempts[0]["body"] == "a\ufffd" * (sender.ANSWER_BYTES // 2)


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_an_answer_that_cannot_be_read_has_taken_the_event_all_the_same(
    db: Database, pubsub: PubSub, web: LittleWeb, encoding: str
) -> None:
    web.answers["/odd"] = Answer(b"no such thing", headers={"Content-Encoding": encoding})
    await endpoint(db, f"{web.url}/odd")
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1)
        (row,) = await settled(db, 1)
    assert (row.status, row.attempts[0]["body"], len(web.asked)) == ("delivered", "", 1)


async def test_names_that_nobody_answers_for_delay_no_other_endpoint(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    released, hanging = threading.Event(), list[str]()
    look_up = socket.getaddrinfo

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if str(host).endswith(".slow.test"):
            hanging.append(host)
            released.wait()
        return look_up(host, *args, **options)

    receiver = Receiver(web)
    for number in range(16):
        await endpoint(db, f"http://{number}.slow.test/", name=f"slow{number}")
    with patch.object(socket, "getaddrinfo", slow), patch.object(module, "CLOSE_SECONDS", 0.0):
        try:
            async with delivering(deliverer(db, pubsub)):
                await ended(db, 4)
                await until(lambda: len(hanging) > 32, what="look-ups that hang")
                await endpoint(db, receiver.url.replace("127.0.0.1", "localhost"), name="works")
                await ended(db, 1)
                await settled(db, 1, endpoint="we_works")
        finally:
            released.set()
    assert sum(receiver.got.values()) == 1


SPELLED = [
    "https://[::ffff:127.0.0.1]/",
    "https://[::1]/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://localhost/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[2002:a9fe:a9fe::]/",
    "https://0/",
    "http://metadata.google.internal@169.254.169.254/",
]


async def test_no_spelling_of_an_address_reaches_this_machine_or_a_metadata_service(
    db: Database, pubsub: PubSub
) -> None:
    for number, url in enumerate(SPELLED):
        await endpoint(db, url, name=str(number))
    async with delivering(deliverer(db, pubsub, networks=())):
        await ended(db, 1)
        await until(partial(all_attempted, db, len(SPELLED)), what="an attempt at each")
    for row in await rows(db):
        (attempt,) = row.attempts
        assert attempt["status_code"] is None
        assert "is refused" in attempt["error"] or "user name" in attempt["error"], attempt


async def test_a_redirect_to_a_metadata_service_is_a_failure_and_is_not_followed(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    web.answers["/away"] = redirect("http://169.254.169.254/latest/meta-data/")
    await endpoint(db, f"{web.url}/away")
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1)
        (row,) = await attempted(db)
    assert [each["status_code"] for each in row.attempts] == [302] and [each.path for each in web.asked] == ["/away"]


async def test_no_metadata_service_is_reached_whatever_is_listed(db: Database, pubsub: PubSub) -> None:
    async def resolve(*_: Any) -> list[str]:
        return ["::ffff:169.254.169.254"]

    networks = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    await endpoint(db, "https://hooks.test/")
    async with delivering(deliverer(db, pubsub, resolve, networks)):
        await ended(db, 1)
        (row,) = await attempted(db)
    assert "hooks.test is refused" in row.attempts[0]["error"]


async def test_a_public_address_is_reached_by_https_alone(db: Database, pubsub: PubSub) -> None:
    async def resolve(*_: Any) -> list[str]:
        return ["1.1.1.1"]

    await endpoint(db, "http://hooks.test/")
    async with delivering(deliverer(db, pubsub, resolve)):
        await ended(db, 1)
        (row,) = await attempted(db)
    assert "only its ports 443 are allowed" in row.attempts[0]["error"]


async def test_an_address_that_changes_between_check_and_call_is_not_called(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    answers = [["127.0.0.1"], ["169.254.169.254"]]
    receiver = Receiver(web)

    async def resolve(*_: Any) -> list[str]:
        return answers.pop(0)

    await endpoint(db, f"http://rebinding.test:{web.port}/hook")
    async with delivering(deliverer(db, pubsub, resolve, LOOPBACK)):
        await ended(db, 1)
        await settled(db, 1)
    assert sum(receiver.got.values()) == 1 and len(answers) == 1, "looked up once"


async def test_retry_after_is_heeded(db: Database, pubsub: PubSub, web: LittleWeb) -> None:
    web.answers["/busy"] = Answer(status=429, headers={"Retry-After": "3600"})
    await endpoint(db, f"{web.url}/busy")
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1)
        (row,) = await attempted(db)
    assert (row.due_at - row.created_at).total_seconds() > 3500


async def test_the_clock_of_postgres_signs_and_not_that_of_the_process(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    receiver = Receiver(web)
    receiver.status = 500
    await endpoint(db, receiver.url)
    claim = deliveries.claim

    async def by_another_clock(*args: Any) -> list[Any]:
        return [replace(each, timestamp=12345.9) for each in await claim(*args)]

    with patch.object(deliveries, "claim", by_another_clock):
        async with delivering(deliverer(db, pubsub)):
            await ended(db, 1)
            await attempted(db)
    assert web.asked[0].headers["webhook-timestamp"] == "12345"


async def test_a_rotation_in_mid_delivery_ends_in_a_delivery_with_the_new_secret(
    db: Database, pubsub: PubSub, web: LittleWeb
) -> None:
    new = secret_of(b"n" * 32)
    receiver = Receiver(web, new)
    await endpoint(db, receiver.url)
    sealed = (await SharedSealer(db).get(DEFAULT_PROJECT)).seal(SealedKind.WEBHOOK_SECRET, new)
    rotating = partial(endpoints.rotate, db, DEFAULT_PROJECT, "we_a", sealed, "hint", 0.0)
    async with delivering(Rotated(deliverer(db, pubsub), rotating).deliverer):
        await ended(db, 1)
        (row,) = await attempted(db)
        assert [each["status_code"] for each in row.attempts] == [401] and len(receiver.forged) == 1
        await make_due(db)
        await settled(db, 1)
    assert sum(receiver.got.values()) == 1


class Rotated:
    """A deliverer whose first endpoint is rotated after its claim, before it is sent to."""

    def __init__(self, made: Deliverer, rotate: Any) -> None:
        self.deliverer, self._rotate, self._attempt, self._done = made, rotate, made._attempt, False
        made._attempt = self._attempt_after_rotation  # type: ignore[method-assign]

    async def _attempt_after_rotation(self, claimed: Any) -> Any:
        if not self._done:
            self._done = True
            await self._rotate()
        return await self._attempt(claimed)


async def test_a_secret_that_nobody_can_read_is_an_error_of_the_attempt(db: Database, pubsub: PubSub) -> None:
    await endpoint(db)
    await sql(db, "UPDATE webhook_endpoints SET secret = 'broken'")
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1)
        (row,) = await attempted(db)
    assert "rotate" in row.attempts[0]["error"]
