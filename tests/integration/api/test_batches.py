"""`/v1/batches`, through the official client: a file of requests in, a file of results out."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import openai
import orjson
import pytest
from openai.types import Batch
from sqlalchemy import text

from app.access.administration import Administration
from app.api.docs import schemas
from app.batches import expander, followers, service, validator
from app.operations.models import backlog
from app.protocol.limits import LimitKind
from app.scheduling.loads import KEPT_PART
from app.store.batches import changes, rows, unfinished
from app.store.batches.results import read_results
from app.store.database import Database, StoreBusy, StoreUnavailable
from app.store.operations import snapshot
from app.store.queue import workers
from app.store.queue.workers import WorkerIdentity
from app.streaming.pubsub import PubSub
from tests.integration.api.common import change, sdk_of
from tests.support import pdfs
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.batches import (
    CHAT,
    RESPONSES,
    Carried,
    carrying,
    created,
    ended,
    has_responses,
    line,
    lines_of,
    uploaded,
)
from tests.support.logs import row_of
from tests.support.player import Player, ids
from tests.support.rows import WORKER
from tests.support.sdk import check
from tests.support.stored import stored
from tests.support.tenants import Tenant, tenant
from tests.support.waiting import until
from workers.formats.chat.messages import messages_of

Client = openai.AsyncOpenAI

CREATE = {"endpoint": RESPONSES, "completion_window": "24h"}


def numbered(count: int, **body: Any) -> list[bytes]:
    return [line(str(number), **body) for number in range(count)]


class TestRun:
    async def test_every_line_has_its_answer_in_the_order_of_the_file(
        self, client: Client, carried: Carried, player: Player
    ) -> None:
        names = [f"line {number}" for number in range(8)]
        async with carried.on(), player.at_work("Hello", " there"):
            for endpoint in (RESPONSES, CHAT):
                made = await created(client, [line(name, endpoint) for name in names], endpoint, metadata={"a": "b"})
                assert (made.status, made.output_file_id, made.metadata) == ("validating", None, {"a": "b"})
                batch = await ended(client, made.id)
                schemas.Batch.model_validate(batch.model_dump(exclude_unset=True))
                check(Batch, batch.to_dict())
                assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
                counts = batch.request_counts
                assert (batch.model, counts.total, counts.completed, counts.failed) == (MODEL, 8, 8, 0)
                results = await lines_of(client, batch.output_file_id)
                assert [each["custom_id"] for each in results] == names
                bodies = [each["response"]["body"] for each in results]
                kind, tokens = (
                    ("response", "output_tokens") if endpoint == RESPONSES else ("chat.completion", "completion_tokens")
                )
                assert {body["object"] for body in bodies} == {kind}
                assert batch.usage.output_tokens == sum(body["usage"][tokens] for body in bodies)

    async def test_what_fails_or_has_not_ended_in_its_window_is_in_the_error_file_and_grouped_by_its_code(
        self, client: Client, api: Api, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, numbered(4))
            await until(lambda: has_responses(db, 4), what="all lines are responses")
            waiting = asyncio.create_task(api.client.get(f"/v1/batches/{made.id}", params={"wait": 60}))
            first, second, third, _ = await ids(db)
            for response_id in (first, second):
                await (await player.begin(response_id)).failed("server_error", "It broke.")
            await player.answer("Hello", response_id=third)
            await change(db, "UPDATE batches SET due_at = now()")
            batch = (await waiting).json()
        check(Batch, batch)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("expired", 1)
        errors = await lines_of(client, batch["error_file_id"])
        assert [each["custom_id"] for each in errors] == ["0", "1", "3"]
        assert [each["response"] and each["response"]["status_code"] for each in errors] == [500, 500, None]
        assert errors[2]["error"]["code"] == "batch_expired"
        assert [each["custom_id"] for each in await lines_of(client, batch["output_file_id"])] == ["2"]
        groups = {each["code"]: each["count"] for each in batch["errors"]["data"]}
        assert groups.items() >= {"server_error": 2}.items()


class TestCancel:
    async def test_what_has_ended_is_kept_and_what_runs_or_waits_or_is_in_the_file_is_cancelled(
        self, client: Client, carried: Carried, player: Player, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        monkeypatch.setattr(expander, "LINES_AHEAD", 9)
        async with carried.on():
            made = await created(client, numbered(20))
            await until(lambda: has_responses(db, 9), what="as many lines are responses as may be")
            first = await ids(db)
            for response_id in first[:2]:
                await player.answer("Hello", response_id=response_id)
            running = [await player.begin(response_id) for response_id in first[2::3]]
            cancelling = await client.batches.cancel(made.id)
            check(Batch, cancelling.to_dict())
            assert cancelling.status == "cancelling"
            batch = await ended(client, made.id)
            assert (await client.batches.cancel(made.id)).status == "cancelled"
        check(Batch, batch.to_dict())
        assert (batch.status, batch.request_counts.completed, batch.request_counts.total) == ("cancelled", 2, 20)
        assert len(await lines_of(client, batch.output_file_id)) == 2
        errors = await lines_of(client, batch.error_file_id)
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        assert [each["custom_id"] for each in errors] == sorted((each["custom_id"] for each in errors), key=int)
        assert len({each["custom_id"] for each in errors}) == 18
        assert not any([await play.write(play.say("more")) for play in running]), "the fence holds"

    async def test_a_batch_that_nobody_has_read_runs_nothing_and_one_that_has_ended_is_not_cancelled(
        self, client: Client, carried: Carried, db: Database
    ) -> None:
        made, bad = [await created(client, [line("a")]) for _ in range(2)]
        assert (await client.batches.cancel(made.id)).status == "cancelling"
        await change(db, "UPDATE files SET expires_at = now() WHERE id = :id", id=bad.input_file_id)
        async with carried.on():
            batch, without_file = await ended(client, made.id), await ended(client, bad.id)
        assert (without_file.status, without_file.errors.data[0].code) == ("failed", "file_not_found")
        assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", None, None)
        assert await ids(db) == []
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.cancel(bad.id)
        assert refused.value.code == "batch_not_cancellable"

    async def test_a_cancel_in_the_middle_of_the_check_ends_it(
        self, client: Client, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checking, go_on, check = asyncio.Event(), asyncio.Event(), expander.RequestAcceptor.line_check

        async def slow(*args: Any) -> Any:
            checking.set()
            await go_on.wait()
            return await check(*args)

        monkeypatch.setattr(expander.RequestAcceptor, "line_check", slow)
        async with carried.on():
            made = await created(client, [line("a"), b"{"])
            await checking.wait()
            assert (await client.batches.cancel(made.id)).status in ("cancelling", "cancelled")
            go_on.set()
            batch = await ended(client, made.id)
        assert batch.status == "cancelled"
        assert (batch.errors, batch.output_file_id, batch.error_file_id) == (None, None, None)
        assert await ids(db) == []


class TestLines:
    async def test_operators_see_those_in_the_file_and_all_are_due_with_their_batch_in_their_order(
        self, client: Client, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        async with carried.on():
            with monkeypatch.context() as patched:
                patched.setattr(expander, "LINES_AHEAD", 6)
                await created(client, numbered(12))
                await until(lambda: has_responses(db, 6), what="as many lines are responses as may be")
                found_now = await snapshot.read(db, 0.0, by_key=True)
                in_files = [each for each in found_now.counts if each.state == "in_files"]
                assert [(each.queue, each.project, each.number) for each in in_files] == [
                    (f"model.{MODEL}", "default", 6)
                ]
                assert [row.queue for row in await db.execute(text("SELECT queue FROM batches"))] == [f"model.{MODEL}"]
                for by in ("model", "project", "key"):
                    (entry,) = backlog(found_now, by, {})
                    assert (entry.waiting, entry.in_files, entry.unfinished) == (6, 6, 12)
            await until(lambda: has_responses(db, 12), what="all lines are responses")
        found = await db.execute(
            text(
                "SELECT r.batch_line, r.rank, r.due_at = b.due_at AS is_due FROM responses r"
                " JOIN batches b ON b.id = r.batch_id ORDER BY r.rank, r.position"
            )
        )
        assert [row.batch_line for row in found] == list(range(1, 13))
        assert len({row.rank for row in found}) == 1 and all(row.is_due for row in found)

    async def test_they_become_responses_as_those_before_them_end_and_the_first_are_sent(
        self, client: Client, carried: Carried, player: Player, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = KEPT_PART
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        monkeypatch.setattr(expander, "LINES_AHEAD", 4)
        most = 4 + expander.AHEAD_OF_SLOT * slots  # whole steps
        await workers.register(
            db, WorkerIdentity(WORKER, MODEL, f"model.{MODEL}", "host", 1, 4096, slots, WORKER), 60.0
        )

        async def are_sent() -> bool:
            (row,) = await db.execute(text("SELECT count(*) AS sent FROM responses WHERE sent_at IS NOT NULL"))
            return bool(row.sent == slots - 1)

        async with carried.on():  # Nobody else dispatches.
            made = await created(client, numbered(most + 6))
            await until(lambda: has_responses(db, most), what="as many lines are responses as may be")
            await until(are_sent, what="as many are sent as the worker has room for, but for the foreground's place")
            for response_id in (await ids(db))[:3]:
                await player.answer("Hello", response_id=response_id)
            await until(lambda: has_responses(db, most + 3), what="so many more are responses as have ended")
            assert len(await ids(db, "queued")) == most
            async with player.at_work("Hello"):
                batch = await ended(client, made.id)
        answers = await lines_of(client, batch.output_file_id)
        assert [each["custom_id"] for each in answers] == list(map(str, range(most + 6)))

    async def test_those_of_several_models_do_not_wait_for_each_other_in_the_file(
        self, client: Client, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "LINES_AHEAD", 2)
        async with carried.on():
            await created(client, [*numbered(5), *(line(name, model="org/other-model") for name in "abcde")])
            await until(lambda: has_responses(db, 10), what="all lines are responses")


class TestBound:
    async def test_a_file_may_have_some_bytes_for_each_line_of_a_batch(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "MAX_BYTES", 100)
        monkeypatch.setattr(service, "LINE_BYTES", 1)
        with pytest.raises(openai.BadRequestError) as caught:
            await created(client, [line("a", input="a" * 50_000)])
        assert (caught.value.code, caught.value.param) == ("file_too_large", "input_file_id")
        assert (await created(client, [line("a", input="a" * 40_000)])).status == "validating"

    async def test_of_two_at_the_same_time_the_bound_lets_one_through(
        self, client: Client, api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted: list[str] = []
        create = changes.create

        async def other_is_here() -> bool:
            return len(counted) == 2 or bool(await db.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted")))

        async def together(connection: Any, new: Any) -> None:
            counted.append(new.id)
            await until(other_is_here, what="the other one has counted, or waits for its turn")
            await create(connection, new)

        monkeypatch.setattr(service, "MAX_UNFINISHED", 1)
        monkeypatch.setattr(changes, "create", together)
        sent = {"input_file_id": await uploaded(client, line("a")), **CREATE}
        async with serving(api.runtime.settings) as other:  # Within one process they take turns.
            answers = await asyncio.gather(*(each.client.post("/v1/batches", json=sent) for each in (api, other)))
        made, refused = sorted(answers, key=lambda answer: answer.status_code)
        assert (made.status_code, refused.status_code) == (200, 429)
        assert refused.json()["error"]["code"] == "too_many_batches"
        assert int(refused.headers["retry-after"]) > 0


class TestRetry:
    async def test_a_retry_reads_the_lines_without_an_answer_in_the_file_of_the_first_batch(
        self, client: Client, api: Api, carried: Carried, player: Player, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And so does a retry of a retry, however few lines are checked and expanded at a time."""
        monkeypatch.setattr(validator, "TURN_LINES", 1)
        monkeypatch.setattr(expander, "STEP_LINES", 1)

        async def retried(batch_id: str) -> dict[str, Any]:
            answer: dict[str, Any] = (await api.client.post(f"/v1/batches/{batch_id}/retry_failed")).json()
            return answer

        async def fail(*places: int) -> None:
            for response_id in [(await ids(db, "queued"))[place] for place in places]:
                await (await player.begin(response_id)).failed("server_error", "It broke.")

        async with carried.on():
            made = await created(client, [b"", *numbered(2), b" ", *numbered(6)[2:]])
            await until(lambda: has_responses(db, 6), what="all lines are responses")
            await fail(1, 3, 5)
            async with player.at_work("Hello"):
                await ended(client, made.id)
            second = await retried(made.id)
            assert (second["retry_of"], second["input_file_id"]) == (made.id, made.input_file_id)
            await until(lambda: has_responses(db, 9), what="the three lines are responses")
            await fail(1, 2)
            async with player.at_work("Hello"):
                assert (await ended(client, second["id"])).request_counts.total == 3
                batch = await ended(client, (await retried(second["id"]))["id"])
        assert (batch.status, batch.request_counts.total, batch.request_counts.completed) == ("completed", 2, 2)
        assert [each["custom_id"] for each in await lines_of(client, batch.output_file_id)] == ["3", "5"]
        assert (await retried(batch.id))["error"]["code"] == "nothing_to_retry"
        await client.files.delete(made.input_file_id)
        assert (await retried(made.id))["error"]["code"] == "file_not_found"

    async def test_of_retries_at_the_same_time_there_is_one_and_its_file_stays(
        self, client: Client, api: Api, carried: Carried, monkeypatch: pytest.MonkeyPatch, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line("a")])
            await until(lambda: has_responses(db, 1), what="the line is a response")
            await client.batches.cancel(made.id)
            await ended(client, made.id)
        retry = partial(api.client.post, f"/v1/batches/{made.id}/retry_failed")
        with monkeypatch.context() as patched:
            patched.setattr(service, "MAX_UNFINISHED", 0)
            assert (await retry()).json()["error"]["code"] == "too_many_batches"
        answers = [answer.json() for answer in await asyncio.gather(*(retry() for _ in range(5)))]
        assert len({answer["id"] for answer in answers}) == 1
        assert [file.id async for file in client.files.list(purpose="batch")] == [made.input_file_id]
        with pytest.raises(openai.BadRequestError, match="reads the file"):
            await client.files.delete(made.input_file_id)


class TestResults:
    async def test_a_follower_reads_every_result_once_however_often_it_is_cut(
        self, client: Client, api: Api, carried: Carried, player: Player
    ) -> None:
        seen: list[Any] = []
        async with carried.on(), player.at_work("Hello"):
            made = await created(client, numbered(12))
            while not seen or "batch" not in seen[-1]:
                params, cut = {"after": len(seen)}, len(seen) + 5
                async with api.client.stream("GET", f"/v1/batches/{made.id}/results", params=params) as response:
                    assert response.status_code == 200
                    async for each in response.aiter_lines():
                        if each.strip():
                            seen.append(orjson.loads(each))
                        if len(seen) == cut:
                            break
        assert [each["number"] for each in seen[:-1]] == list(range(1, 13))
        assert {each["custom_id"] for each in seen[:-1]} == {str(number) for number in range(12)}
        assert seen[-1]["batch"]["id"] == made.id

    async def test_a_follower_waits_while_postgres_is_away(
        self, client: Client, api: Api, carried: Carried, player: Player, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found by the fault suite: the stream broke off, and an error was logged."""
        trouble = [StoreUnavailable(), None, StoreBusy(), None, None, StoreUnavailable()] * 2

        async def troubled(*arguments: Any) -> Any:
            if trouble and (error := trouble.pop()) is not None:
                raise error
            return await read_results(*arguments)

        monkeypatch.setattr(followers, "read_results", troubled)
        monkeypatch.setattr(followers, "FOLLOW_SECONDS", 0.01)
        monkeypatch.setattr(followers, "PAUSE_SECONDS", 0.0)
        made = await created(client, numbered(5))
        following = asyncio.create_task(api.client.get(f"/v1/batches/{made.id}/results"))
        await until(lambda: len(trouble) < 6, what="it reads")
        async with carried.on(), player.at_work("Hello"):
            answer = await following
        lines = [orjson.loads(each) for each in answer.text.splitlines() if each]
        assert [each.get("number") for each in lines] == [1, 2, 3, 4, 5, None]
        assert (lines[-1]["batch"]["status"], trouble) == ("completed", [])


async def test_requests_with_one_key_make_one_batch_also_without_its_file_and_another_body_is_refused(
    client: Client, carried: Carried, player: Player
) -> None:
    file = await uploaded(client, line("a"))
    sent: dict[str, Any] = {"input_file_id": file, **CREATE, "metadata": {"job": "7"}}
    keyed = partial(client.batches.create, extra_headers={"Idempotency-Key": "nightly-7"})
    made = await asyncio.gather(*(keyed(**sent) for _ in range(8)))
    assert len({each.id for each in made}) == 1
    other = await client.batches.create(**sent)
    assert [each.id for each in (await client.batches.list()).data] == [other.id, made[0].id]
    for field in ({"metadata": {"job": "8"}}, {"completion_window": "8h"}):
        with pytest.raises(openai.BadRequestError) as refused:
            await keyed(**{**sent, **field})
        assert (refused.value.code, refused.value.param) == ("idempotency_key_reused", "Idempotency-Key")
    async with carried.on(), player.at_work("Hello"):
        for batch in (other, made[0]):
            await ended(client, batch.id)
    await client.files.delete(file)
    repeated = await keyed(**sent)
    assert (repeated.id, repeated.status) == (made[0].id, "completed")


async def test_they_are_listed_the_newest_first_and_what_is_wrong_is_named(
    client: Client, api: Api, carried: Carried
) -> None:
    made = [(await created(client, [b"{}"])).id for _ in range(3)]
    first = await client.batches.list(limit=2)
    assert [each.id for each in first.data] == made[:0:-1]
    assert [each.id async for each in first] == made[::-1]
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_missing")
    other = await uploaded(client, b"{}", purpose="user_data")
    for fields, param, code in (
        ({"input_file_id": "file_missing"}, "input_file_id", "file_not_found"),
        ({"input_file_id": other}, "input_file_id", "invalid_purpose"),
        ({"endpoint": "/v1/embeddings"}, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"other": 1}, "other", "unknown_parameter"),
    ):
        answer = await api.client.post("/v1/batches", json={"input_file_id": "file_1", **CREATE, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    file = (await client.batches.retrieve(made[0])).input_file_id
    with pytest.raises(openai.BadRequestError) as refused:
        await client.files.delete(file)
    assert refused.value.code == "file_in_use"
    async with carried.on():
        await ended(client, made[0])
    await client.files.delete(file)


async def problems(client: Client, lines: Sequence[bytes], endpoint: str = RESPONSES) -> list[Any]:
    """Line, code and param of each error of a batch that failed, of which nothing ran."""
    batch = await ended(client, (await created(client, lines, endpoint)).id)
    check(Batch, batch.to_dict())
    assert batch.status == "failed"
    assert (batch.output_file_id, batch.error_file_id, batch.request_counts.completed) == (None, None, 0)
    return [(each.line, each.code, each.param) for each in batch.errors.data]


async def test_bad_files_and_bad_lines_are_named_and_nothing_runs(
    client: Client, carried: Carried, db: Database
) -> None:
    """tests/unit/batches has each way for a line to be bad."""
    long = line("long", input="a" * 10 * 1024 * 1024)
    async with carried.on():
        for data in (b"", b"\xef\xbb\xbf\n\r\n  \n"):
            assert await problems(client, [data]) == [(None, "empty_file", None)]
        lines = [line("a"), b"{", line("b", model="nobody's"), line("a"), line("c", temperature="hot"), long, line("d")]
        assert await problems(client, lines) == [
            (2, "invalid_json_line", None),
            (3, "model_not_found", "body.model"),
            (4, "duplicate_custom_id", "custom_id"),
            (5, "invalid_type", "body.temperature"),
            (6, "line_too_long", None),
        ]
    assert await ids(db) == []


async def test_a_tier_that_batches_do_not_have_and_a_project_that_has_none_are_told(
    services: Any, db: Database, pubsub: PubSub, admin: Administration, tmp_path: Path
) -> None:
    async with (
        serving(settings_for(services, tmp_path, auth="keys")) as api,
        carrying(services, api, pubsub) as carried,
    ):

        async def client_of(tier: str) -> openai.AsyncOpenAI:
            project = (await admin.create_project(tier, top_tier=tier)).id
            secret = (await tenant(admin, tier, project=project)).key.secret
            return sdk_of(api, secret)

        async with carried.on(), await client_of("priority") as best, await client_of("flex") as flex:
            for endpoint in (RESPONSES, CHAT):
                lines = [line(tier, endpoint, service_tier=tier) for tier in ("flex", "default", "priority", "auto")]
                wrong = [(number, "invalid_value", "body.service_tier") for number in (1, 3)]
                assert await problems(best, lines, endpoint) == wrong
            batch = await ended(flex, (await created(flex, [line("a")])).id)
    [error] = batch.errors.data
    assert (error.param, error.message) == (
        "body.service_tier",
        "Invalid 'service_tier': a batch needs the service tier 'default'. The project's best is 'flex'.",
    )


def _with(endpoint: str, file: dict[str, str]) -> dict[str, Any]:
    if endpoint == RESPONSES:
        return {"input": [{"role": "user", "content": [{"type": "input_file", **file}]}]}
    return {"messages": [{"role": "user", "content": [{"type": "file", "file": file}]}]}


async def test_a_line_has_files_as_a_request_has_them_and_one_with_a_bad_file_fails_alone(
    client: Client, carried: Carried, player: Player, db: Database
) -> None:
    made = await client.files.create(file=("paper.pdf", pdfs.pdf("Hello there")), purpose="user_data")
    locked = await client.files.create(file=("locked.pdf", pdfs.encrypted()), purpose="user_data")
    data = f"data:text/csv;base64,{base64.b64encode(b'a,b').decode()}"
    async with carried.on():
        for endpoint in (RESPONSES, CHAT):
            files = ({"file_id": made.id}, {"file_data": data, "filename": "data.csv"})
            lines = [line(str(number), endpoint, **_with(endpoint, file)) for number, file in enumerate(files)]
            batch = await created(client, lines, endpoint)

            async def both() -> list[str]:
                queued = await ids(db, "queued")
                return queued if len(queued) == 2 else []

            queued = await until(both, what="both lines are responses")
            messages = [messages_of((await row_of(db, each)).request["input"]) for each in queued]
            assert sorted(str(message["content"]) for [message] in messages) == [
                '<file name="data.csv">\na,b\n</file>\n',
                '<file name="paper.pdf">\nHello there\n</file>\n',
            ]
            async with player.at_work("Read."):
                assert (await ended(client, batch.id)).status == "completed"
            bad = [
                line(str(number), endpoint, **_with(endpoint, {"file_id": file}))
                for number, file in enumerate(("file_none", locked.id))
            ]
            made_of_bad = await created(client, bad, endpoint)
            failed = await lines_of(client, (await ended(client, made_of_bad.id)).error_file_id)
            assert [each["error"]["code"] for each in failed] == ["file_not_found", "file_encrypted"]


async def test_all_followers_of_a_batch_share_each_look(
    client: Client, api: Api, carried: Carried, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return await read_results(*arguments)

    monkeypatch.setattr(followers, "read_results", counted)
    made = await created(client, numbered(5))
    following = [asyncio.create_task(api.client.get(f"/v1/batches/{made.id}/results")) for _ in range(40)]
    async with carried.on(), player.at_work("Hello"):
        answers = await asyncio.gather(*following)
    read = [[json.loads(each) for each in answer.text.splitlines() if each] for answer in answers]
    assert {len(lines) for lines in read} == {6}
    assert looks < 40


async def test_a_list_of_batches_with_large_errors_ends_before_it_is_large(
    client: Client, carried: Carried, db: Database
) -> None:
    made = [(await created(client, [b"{}"])).id for _ in range(8)]
    error = {"line": 1, "code": "a", "message": "x" * 1_000_000, "param": None}
    await change(
        db,
        "UPDATE batches SET status = 'failed', errors = CAST(:errors AS json)",
        errors=json.dumps({"object": "list", "data": [error]}),
    )
    first = await client.batches.list(limit=8)
    assert ([each.id for each in first.data], first.has_more) == (made[:3:-1], True)
    assert [each.id async for each in first] == made[::-1]


class TestEveryKindOfRequest:
    """A line may say all that a request may, and does it with maintenance's rights."""

    async def test_items_with_ids_references_reasoning_conversations_and_chains_run(
        self, client: Client, carried: Carried, player: Player, db: Database
    ) -> None:
        first = await client.responses.create(model=MODEL, input="Hello!", background=True)
        await player.answer("Hello", response_id=first.id)
        answer = (await client.responses.retrieve(first.id)).output[0].to_dict()
        talk = await client.conversations.create(items=[{"role": "user", "content": "Hi"}])
        [item] = (await client.conversations.items.list(talk.id)).data
        call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": "7"}
        added = await client.conversations.create(items=[call])  # type: ignore[list-item]
        said = {"role": "user", "content": "Go on"}
        bodies: list[dict[str, Any]] = [
            {"input": [said, answer, said]},
            {"input": [{"type": "item_reference", "id": answer["id"]}, said]},
            {"input": [{"type": "item_reference", "id": item.id}, said]},
            {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}, said]},
            {"input": [said], "conversation": talk.id},
            {"input": [output, said], "conversation": added.id},
            {"input": [said], "previous_response_id": first.id},
            {"input": [said, call, output]},
        ]
        async with carried.on(), player.at_work("Hello"):
            batch = await ended(
                client, (await created(client, [line(str(n), **body) for n, body in enumerate(bodies)])).id
            )
        failed = await lines_of(client, batch.error_file_id) if batch.error_file_id else []
        assert (batch.status, failed) == ("completed", [])
        assert batch.request_counts.completed == len(bodies)


class TestTrouble:
    async def test_a_line_whose_check_raises_is_a_bad_line_and_logged_once(
        self, client: Client, carried: Carried, db: Database, caplog: pytest.LogCaptureFixture, monkeypatch: Any
    ) -> None:
        read = validator.read_line

        def raises(raw: Any, *more: Any) -> Any:
            if raw.number in (2, 3):
                raise KeyError("nobody foresaw it")
            return read(raw, *more)

        monkeypatch.setattr(validator, "read_line", raises)
        async with carried.on():
            assert await problems(client, numbered(4)) == [(2, "server_error", None), (3, "server_error", None)]
        assert len([each for each in caplog.records if "cannot be checked" in each.getMessage()]) == 1
        assert "foresaw" not in caplog.text

    async def test_a_template_of_re_in_a_refused_value_is_a_bad_line(self, client: Client, carried: Carried) -> None:
        choice = "'tool_choice.name' \\g<9>"
        async with carried.on():
            [(number, _, param)] = await problems(client, [line("a", CHAT, tool_choice=choice)], CHAT)
        assert number == 1 and (param is None or param.startswith("body"))

    async def test_the_window_ends_a_batch_whose_file_is_not_checked(
        self, client: Client, carried: Carried, db: Database
    ) -> None:
        made = await created(client, numbered(3))
        await change(db, "UPDATE batches SET due_at = now(), validating_until = now() + interval '1 hour'")
        async with carried.on():
            batch = await ended(client, made.id)
        check(Batch, batch.to_dict())
        assert (batch.status, batch.request_counts.total, await ids(db)) == ("expired", 0, [])

    async def test_a_file_is_checked_in_turns_and_each_goes_on_behind_the_last(
        self, client: Client, carried: Carried, player: Player, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(validator, "TURN_LINES", 2)
        wrong = [*numbered(5), line("3"), b"", line("c", temperature="hot"), *numbered(2, top_p="x")]
        async with carried.on():
            assert await problems(client, wrong) == [
                (6, "duplicate_custom_id", "custom_id"),
                (8, "invalid_type", "body.temperature"),
                (9, "invalid_type", "body.top_p"),
                (10, "invalid_type", "body.top_p"),
            ]
            async with player.at_work("Hello"):
                assert (await ended(client, (await created(client, numbered(5))).id)).request_counts.completed == 5

    async def test_a_validation_has_one_owner_who_knows_when_it_lost_it(self, client: Client, db: Database) -> None:
        made = await created(client, numbered(3))

        async def claim(known: Any) -> Any:
            async with db.autocommit() as connection:
                return await changes.claim(connection, made.id, 30.0, known)

        first = await claim(None)
        assert first is not None and await claim(None) is None
        renewed = await claim(first)
        assert renewed is not None and await claim(first) is None
        await change(db, "UPDATE batches SET validating_until = now() - interval '1 second'")
        other = await claim(None)
        assert other is not None and await claim(renewed) is None
        assert [each.id for each in await unfinished.find_all(db, [])] == []
        assert [each.id for each in await unfinished.find_all(db, [made.id])] == [made.id]


class TestLimits:
    """Lines wait in the file until their project's limits have room for them."""

    SETTINGS: ClassVar = {"auth": "keys"}

    @pytest.fixture
    async def client(self, api: Api, mine: Tenant) -> AsyncIterator[Client]:
        async with sdk_of(api, mine.key.secret) as running:
            yield running

    @pytest.fixture
    def limit(self, admin: Administration, mine: Tenant) -> Any:
        async def set_limits(**values: int | None) -> None:
            await admin.set_limits(mine.project, "*", {LimitKind(kind): value for kind, value in values.items()})

        return set_limits

    async def test_lines_become_responses_as_room_appears_and_leave_some_to_single_requests(
        self, client: Client, limit: Any, carried: Carried, player: Player, db: Database
    ) -> None:
        sent: dict[str, Any] = {"model": MODEL, "input": "Hello!", "background": True, "max_output_tokens": 1000}
        async with carried.on():
            for kind, value in (("queued_responses", 8), ("unfinished_responses", 8), ("tokens_per_minute", 20_000)):
                await limit(**{kind: value})
                made, seen = await created(client, numbered(13, max_output_tokens=1000)), []
                while True:

                    async def look(batch_id: str = made.id) -> Any:
                        batch, queued = await client.batches.retrieve(batch_id), await ids(db, "queued")
                        return (batch, queued) if queued or batch.status == "completed" else None

                    batch, queued = await until(look, what="lines are responses, or the batch is completed")
                    if batch.status == "completed":
                        break
                    seen.append(len(queued))
                    live = [await client.responses.create(**sent) for _ in range(2)]
                    for response_id in await ids(db, "queued"):
                        await player.answer("Hello", response_id=response_id)
                    assert {(await client.responses.retrieve(one.id)).status for one in live} == {"completed"}
                assert (batch.request_counts.completed, batch.request_counts.failed) == (13, 0), kind
                assert len(seen) > 1 and max(seen) <= 9, (kind, seen)
                answers = await lines_of(client, batch.output_file_id)
                assert [each["custom_id"] for each in answers] == list(map(str, range(13)))
                await limit(**{kind: None})

    async def test_what_a_batch_comes_to_counts_in_stored_bytes_and_too_much_of_it_does_not_begin(
        self, client: Client, limit: Any, mine: Tenant, carried: Carried, player: Player, db: Database
    ) -> None:
        await limit(stored_bytes=40_000)
        async with carried.on():
            refused = await ended(client, (await created(client, numbered(50))).id)
            (error,) = refused.errors.data
            assert (refused.status, error.line, error.code) == ("failed", None, "rate_limit_exceeded")
            assert "stored_bytes" in error.message
            before = await stored(db, mine.project)
            async with player.at_work("Hello"):
                assert (await ended(client, (await created(client, numbered(5))).id)).status == "completed"
            assert await stored(db, mine.project) > before + 5 * rows.LINE_BYTES
            for _ in range(80):
                if await stored(db, mine.project) > 38_000:
                    break
                await client.files.create(file=("empty", b""), purpose="user_data")
            with pytest.raises(openai.RateLimitError):
                for _ in range(4):
                    await client.files.create(file=("empty", b""), purpose="user_data")
            assert await stored(db, mine.project) <= 40_000

    async def test_a_line_that_never_fits_or_fits_no_more_fails_alone(
        self, client: Client, limit: Any, carried: Carried, player: Player, db: Database
    ) -> None:
        await limit(queued_responses=1, tokens_per_day=8000)
        lines = [line(name, max_output_tokens=4500 if name == "large" else 100) for name in ("a", "b", "large", "c")]
        async with carried.on():
            never = await ended(client, (await created(client, [line("never", max_output_tokens=9000)])).id)
            (refused,) = await lines_of(client, never.error_file_id)
            assert (never.status, refused["error"]["code"]) == ("completed", "rate_limit_exceeded")
            assert "never fits" in refused["error"]["message"] and "tokens_per_day" in refused["error"]["message"]
            assert await ids(db) == []
            made = await created(client, lines)
            await until(lambda: ids(db, "queued"), what="the first line is a response")
            await limit(tokens_per_day=4000)
            async with player.at_work("Hello"):
                batch = await ended(client, made.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 3, 1)
        (failed,) = await lines_of(client, batch.error_file_id)
        assert (failed["custom_id"], failed["error"]["code"]) == ("large", "rate_limit_exceeded")
