"""`/v1/webhook_endpoints`, as OpenAI's client manages them, and `/v1/events`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import openai
import orjson
import pytest
from sqlalchemy import text

from app.api import sse
from app.protocol.requests.bodies.webhooks import EVENT_TYPES
from app.store.database import Database
from app.streaming.pubsub import PubSub
from app.webhooks import feed, service
from tests.integration.api.common import error_of, sdk_of
from tests.support.api import Api
from tests.support.little_web import LittleWeb
from tests.support.player import Player
from tests.support.tenants import Tenant
from tests.support.waiting import until
from tests.support.webhooks import LOOPBACK, Receiver, deliverer, delivering, ended, rows

SETTINGS = {"auth": "keys", "webhook_networks": LOOPBACK}
COMPLETED = ["response.completed", "response.cancelled"]


@pytest.fixture
def web() -> Iterator[LittleWeb]:
    with LittleWeb() as running:
        yield running


@pytest.fixture
async def sdk(api: Api, mine: Tenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_of(api, mine.key.secret) as client:
        yield client


async def made(sdk: openai.AsyncOpenAI, url: str = "https://hooks.example/a", **more: Any) -> Any:
    return await sdk.webhooks.create(**{"event_types": COMPLETED, "name": "jobs", "url": url, **more})


async def test_the_client_makes_reads_changes_lists_and_deletes_endpoints(sdk: openai.AsyncOpenAI) -> None:
    new = await made(sdk)
    assert new.object == "webhook_endpoint" and new.signing_secret.startswith("whsec_")
    assert new.signing_secret_hint == f"whsec_...{new.signing_secret[-4:]}"
    read = await sdk.webhooks.retrieve(new.id)
    assert read.to_dict() == {key: value for key, value in new.to_dict().items() if key != "signing_secret"}
    assert (read.name, read.url, sorted(read.event_types)) == ("jobs", "https://hooks.example/a", sorted(COMPLETED))
    same = await sdk.webhooks.update(new.id, name="jobs")
    assert same.updated_at == read.updated_at == read.created_at
    changed = await sdk.webhooks.update(new.id, name="nightly", event_types=["batch.completed"])
    assert (changed.name, changed.event_types, changed.url) == ("nightly", ["batch.completed"], read.url)
    others = [(await made(sdk, name=str(number))).id for number in range(3)]
    assert [each.id async for each in sdk.webhooks.list(limit=2)] == [*reversed(others), new.id]
    gone = await sdk.webhooks.delete(new.id)
    assert (gone.id, gone.deleted, gone.object) == (new.id, True, "webhook_endpoint.deleted")
    with pytest.raises(openai.NotFoundError):
        await sdk.webhooks.retrieve(new.id)
    assert list((await sdk.webhooks.event_types.list()).data) == list(EVENT_TYPES)


async def test_what_is_stored_of_a_secret_is_sealed(db: Database, sdk: openai.AsyncOpenAI) -> None:
    new = await made(sdk)
    stored = await db.execute(text("SELECT * FROM webhook_endpoints"))
    assert stored and new.signing_secret.removeprefix("whsec_") not in str(stored)


async def test_a_rotation_replaces_the_secret_at_once_or_in_a_day(
    db: Database, pubsub: PubSub, sdk: openai.AsyncOpenAI, web: LittleWeb, mine: Tenant
) -> None:
    new = await made(sdk, f"{web.url}/hook")
    kept = await sdk.webhooks.rotate_secret(new.id, keep_old_secret_active_for_24_hours=True)
    receiver = Receiver(web, new.signing_secret)
    async with delivering(deliverer(db, pubsub)):
        await ended(db, 1, mine.project)
        await waited(receiver, 1)
        receiver.secret = kept.signing_secret
        await ended(db, 1, mine.project)
        await waited(receiver, 2)
        assert receiver.forged == []
        last = await sdk.webhooks.rotate_secret(new.id)
        await ended(db, 1, mine.project)
        await until(lambda: receiver.forged, what="a delivery with another secret")
    assert len({new.signing_secret, kept.signing_secret, last.signing_secret}) == 3


async def waited(receiver: Receiver, count: int) -> None:
    await until(lambda: sum(receiver.got.values()) >= count, what=f"{count} deliveries")


async def test_a_test_sends_a_sample_once_and_says_what_the_endpoint_answered(
    sdk: openai.AsyncOpenAI, web: LittleWeb
) -> None:
    new = await made(sdk, f"{web.url}/hook")
    receiver = Receiver(web, new.signing_secret)
    for event_type, status in (("response.failed", 200), ("batch.expired", 500)):
        receiver.status = status
        result = await sdk.webhooks.test(new.id, event_type=event_type)  # type: ignore[arg-type]
        assert (result.status_code, result.success, result.event_type) == (status, True, event_type)
        assert (result.object, result.webhook_endpoint_id) == ("webhook_endpoint.test", new.id)
    assert receiver.forged == [] and [event["type"] for event in receiver.events] == ["response.failed"]
    nowhere = await made(sdk, "http://127.0.0.1:1/")
    with pytest.raises(openai.BadRequestError, match="did not answer"):
        await sdk.webhooks.test(nowhere.id, event_type="batch.failed")
    private = await made(sdk, "https://10.1.2.3/")
    with pytest.raises(openai.BadRequestError, match="not public"):
        await sdk.webhooks.test(private.id, event_type="batch.failed")


async def test_a_test_is_signed_by_the_clock_of_postgres(
    sdk: openai.AsyncOpenAI, web: LittleWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = await made(sdk, f"{web.url}/hook")

    async def by_postgres(_: Database) -> datetime:
        return datetime.fromtimestamp(12345.9, UTC)

    monkeypatch.setattr(service.retention, "now", by_postgres)
    await sdk.webhooks.test(new.id, event_type="batch.failed")
    assert web.asked[0].headers["webhook-timestamp"] == "12345"


async def test_deliveries_are_listed_and_replayed(
    db: Database, pubsub: PubSub, calling: Api, sdk: openai.AsyncOpenAI, web: LittleWeb, mine: Tenant
) -> None:
    new = await made(sdk, f"{web.url}/hook")
    receiver = Receiver(web, new.signing_secret)
    receiver.status = 400
    path = f"/v1/webhook_endpoints/{new.id}/deliveries"
    async with delivering(deliverer(db, pubsub)):
        ids = await ended(db, 3, mine.project)
        await until(partial(all_attempted, db), what="three attempts")
        page = (await calling.client.get(path, params={"limit": 2})).json()
        assert page["has_more"] and len(page["data"]) == 2
        rest = (await calling.client.get(path, params={"after": page["last_id"]})).json()
        assert not rest["has_more"]
        unknown = await calling.client.get(path, params={"after": f"evt_{'0' * 40}"})
        assert unknown.status_code == 400 and error_of(unknown)["param"] == "after"
        found = [*page["data"], *rest["data"]]
        assert sorted(each["data"]["id"] for each in found) == ids
        for each in found:
            assert (each["status"], each["event_type"]) == ("pending", "response.cancelled")
            assert [attempt["status_code"] for attempt in each["attempts"]] == [400]
        receiver.status = 200
        replayed = await calling.client.post(f"{path}/{found[0]['id']}/replay")
        assert replayed.json()["status"] == "pending"
        await waited(receiver, 1)
    assert receiver.got == {found[0]["id"]: 1} and receiver.tried[found[0]["id"]] == 2
    await calling.client.post(f"/v1/webhook_endpoints/{new.id}", json={"disabled": True})
    refused = await calling.client.post(f"{path}/{found[0]['id']}/replay")
    assert refused.status_code == 400 and error_of(refused)["code"] == "webhook_endpoint_disabled"
    assert (await calling.client.post(f"{path}/evt_unknown/replay")).status_code == 400
    await calling.client.post(f"/v1/webhook_endpoints/{new.id}", json={"disabled": False})
    assert (await calling.client.post(f"{path}/evt_unknown/replay")).status_code == 404


async def all_attempted(db: Database) -> bool:
    found = await rows(db)
    return len(found) == 3 and all(row.attempts for row in found)


async def test_an_endpoint_shows_that_it_is_disabled_and_why(calling: Api, sdk: openai.AsyncOpenAI) -> None:
    new = await made(sdk)
    path = f"/v1/webhook_endpoints/{new.id}"
    disabled = (await calling.client.post(path, json={"disabled": True})).json()
    assert (disabled["disabled"], disabled["disabled_reason"]) == (True, "requested") and disabled["disabled_at"]
    assert disabled == (await calling.client.get(path)).json()
    enabled = (await calling.client.post(path, json={"disabled": False})).json()
    assert (enabled["disabled"], enabled["disabled_reason"], enabled["disabled_at"]) == (False, None, None)


GOOD = {"name": "a", "url": "https://hooks.example/", "event_types": ["batch.failed"]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": "ftp://hooks.example/"}, "url"),
    ({"url": "hooks.example"}, "url"),
    ({"url": "https://"}, "url"),
    ({"url": "https://user:secret@hooks.example/"}, "url"),
    ({"url": "https://hooks.example/#there"}, "url"),
    ({"url": "https://hooks.example/ a"}, "url"),
    ({"url": "https://hooks.example/\0"}, "url"),
    ({"url": "https://hooks.example:99999/"}, "url"),
    ({"url": "https://[::1/"}, "url"),
    ({"url": "https://hooks.example/" + "a" * 2048}, "url"),
    ({"name": ""}, "name"),
    ({"name": "a\0"}, "name"),
    ({"name": "a" * 257}, "name"),
    ({"event_types": []}, "event_types"),
    ({"event_types": ["response.completed", "eval.run.failed"]}, "event_types[1]"),
    ({"event_types": "batch.failed"}, "event_types"),
    ({"secret": "mine"}, "secret"),
]


async def test_a_bad_endpoint_is_refused_by_its_field(calling: Api) -> None:
    for change, param in BAD:
        answer = await calling.client.post("/v1/webhook_endpoints", json={**GOOD, **change})
        assert answer.status_code == 400 and error_of(answer)["param"] == param, (change, answer.text)


async def test_a_project_has_a_bounded_number_of_endpoints(calling: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_ENDPOINTS", 2)
    answers = [await calling.client.post("/v1/webhook_endpoints", json=GOOD) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 400]
    assert error_of(answers[2])["code"] == "too_many_webhook_endpoints"


async def test_tests_share_a_bound(sdk: openai.AsyncOpenAI, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    new = await made(sdk, "http://127.0.0.1:1/")
    api.runtime.webhooks.tests.total = 1
    with api.runtime.webhooks.tests.take("another"), pytest.raises(openai.APIStatusError) as refused:
        await sdk.webhooks.test(new.id, event_type="batch.failed")
    assert refused.value.status_code in (429, 503)


# -- the feed --------------------------------------------------------------------------------------------------------


async def test_pages_resume_behind_their_last_id(db: Database, calling: Api, mine: Tenant) -> None:
    ids = await ended(db, 7, mine.project)
    after, found = "", []
    while True:
        page = (
            await calling.client.get("/v1/events", params={"limit": 3, **({"after": after} if after else {})})
        ).json()
        found += page["data"]
        after = page["last_id"] or after
        if not page["has_more"]:
            break
    assert sorted(event["data"]["id"] for event in found) == ids
    assert [event["id"] for event in found] == sorted(event["id"] for event in found)
    assert {event["object"] for event in found} == {"event"} and {e["type"] for e in found} == {"response.cancelled"}
    assert (await calling.client.get("/v1/events", params={"after": after})).json()["data"] == []


async def test_an_id_that_is_none_is_refused(calling: Api) -> None:
    for after in ("resp_1", "evt_", "evt_ffffffffffff" + "0" * 28, "evt_0\0", "evt_" + "0" * 41):
        for sent in ({"params": {"after": after}}, {"headers": {"last-event-id": after.replace("\0", "")}}):
            answer = await calling.client.get("/v1/events", **sent)  # type: ignore[arg-type]
            assert answer.status_code == 400 and error_of(answer)["param"] == "after", answer.text


@asynccontextmanager
async def following(api: Api, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    async with api.client.stream("GET", "/v1/events", headers={"accept": "text/event-stream", **headers}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        yield frames(answer)


async def frames(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The id and the data of each event."""
    event_id = ""
    async for line in answer.aiter_lines():
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            yield event_id, orjson.loads(line[6:])


async def test_a_stream_that_is_cut_twice_has_every_event_once_and_in_order(
    db: Database, calling: Api, mine: Tenant, pubsub: PubSub
) -> None:
    ids: list[str] = []
    seen: list[str] = []
    events: list[dict[str, Any]] = []
    for _ in range(3):
        ids += await ended(db, 4, mine.project)
        last = {"last-event-id": seen[-1]} if seen else {}
        async with following(calling, **last) as stream:
            async for event_id, event in stream:
                assert event_id == event["id"]
                seen.append(event_id)
                events.append(event)
                if len(seen) == len(ids) - 1:  # one is left for the next stream
                    break
    last_page = (await calling.client.get("/v1/events", params={"after": seen[-1]})).json()["data"]
    events += last_page
    assert sorted(event["data"]["id"] for event in events) == sorted(ids)
    whole = (await calling.client.get("/v1/events", params={"limit": 1000})).json()["data"]
    assert whole == events


async def test_an_event_source_that_connects_again_goes_on_behind_the_last_event(
    db: Database, calling: Api, mine: Tenant
) -> None:
    await ended(db, 4, mine.project)
    found = [event["id"] for event in (await calling.client.get("/v1/events")).json()["data"]]
    again = {"params": {"after": found[0]}, "headers": {"last-event-id": found[2]}}
    rest = await calling.client.get("/v1/events", **again)  # type: ignore[arg-type]
    assert [event["id"] for event in rest.json()["data"]] == found[3:]


async def test_a_feed_that_has_nothing_to_tell_is_kept_alive(calling: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "BLANK_LINE_SECONDS", 0.0)
    async with calling.client.stream("GET", "/v1/events", params={"stream": "true"}) as answer:
        assert await anext(answer.aiter_raw()) == b"\n"


async def test_a_stream_goes_on_with_what_ends(
    db: Database, api: Api, calling: Api, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.01)
    created = (await calling.post(background=True)).json()["id"]
    async with following(calling) as stream:
        asking = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
        await until(lambda: api.runtime.pubsub._channels, what="a listener")
        await player.answer("x", response_id=created)
        _, event = await asking
    assert (event["type"], event["data"]["id"]) == ("response.completed", created)
