"""`/v1/batches`, through the official client: a file of requests in, a file of results out."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, ClassVar, get_args

import httpx
import openai
import orjson
import pytest
from sqlalchemy import text

from app.api.docs import schemas
from app.batches import expander, service
from app.batches.line import LineError, read_line
from app.operations.backlog import added_up
from app.scheduling.loads import KEPT_PART
from app.store.batches import rows
from app.store.batches.results import read_results
from app.store.database import Database, StoreBusy, StoreUnavailable
from app.store.files import files
from app.store.queue import backlog, fleet
from app.store.queue.fleet import LinesInFiles
from tests.support.api import MODEL, Api, serving
from tests.support.batches import CHAT, RESPONSES, Carried, created, ended, has_responses, line, lines_of, uploaded
from tests.support.player import Player, ids
from tests.support.rows import SLOTS, alive
from tests.support.waiting import until


class TestRun:
    @pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
    async def test_every_line_has_its_answer_in_the_order_of_the_file(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, endpoint: str
    ) -> None:
        names = [f"line {number}" for number in range(40)]
        async with carried.on(), player.at_work("Hello", " there"):
            made = await created(client, [line(name, endpoint) for name in names], endpoint, metadata={"a": "b"})
            assert (made.status, made.output_file_id, made.metadata) == ("validating", None, {"a": "b"})
            batch = await ended(client, made.id)
        schemas.Batch.model_validate(batch.model_dump(exclude_unset=True))
        assert (batch.status, batch.error_file_id, batch.errors, batch.model) == ("completed", None, None, MODEL)
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
        results = await lines_of(client, batch.output_file_id)
        assert [each["custom_id"] for each in results] == names
        body = results[0]["response"]["body"]
        assert body["object"] == ("response" if endpoint == RESPONSES else "chat.completion")
        assert batch.usage.output_tokens == sum(
            each["response"]["body"]["usage"]["output_tokens" if endpoint == RESPONSES else "completion_tokens"]
            for each in results
        )

    async def test_bad_lines_are_named_and_nothing_runs(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database
    ) -> None:
        lines = [line("a"), b"{", line("b", model="nobody's"), line("a"), line("c", temperature="hot"), line("d")]
        async with carried.on():
            batch = await ended(client, (await created(client, lines)).id)
        assert batch.status == "failed"
        assert [(each.line, each.code, each.param) for each in batch.errors.data] == [
            (2, "invalid_json_line", None),
            (3, "model_not_found", "body.model"),
            (4, "duplicate_custom_id", "custom_id"),
            (5, "invalid_type", "body.temperature"),
        ]
        assert await ids(db) == []

    async def test_what_fails_is_in_the_error_file_and_grouped_by_its_code(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line(str(number)) for number in range(4)])
            await until(lambda: has_responses(db, 4), what="all lines are responses")
            for response_id in (await ids(db))[:2]:
                play = await player.begin(response_id)
                await play.failed("server_error", "It broke.")
            async with player.at_work("Hello"):
                batch = await ended(client, made.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 2)
        errors = await lines_of(client, batch.error_file_id)
        assert [each["response"]["status_code"] for each in errors] == [500, 500]
        assert {each["custom_id"] for each in errors + await lines_of(client, batch.output_file_id)} == set("0123")
        (group,) = batch.errors.data
        assert (group.code, group.count) == ("server_error", 2)


class TestCancel:
    async def test_what_has_ended_is_kept_and_the_rest_is_cancelled(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line(str(number)) for number in range(20)])
            await until(lambda: has_responses(db, 20), what="all lines are responses")
            for response_id in (await ids(db))[:5]:
                await player.answer("Hello", response_id=response_id)
            assert (await client.batches.cancel(made.id)).status == "cancelling"
            batch = await ended(client, made.id)
            assert (await client.batches.cancel(made.id)).status == "cancelled"
        assert (batch.status, batch.request_counts.completed, batch.request_counts.total) == ("cancelled", 5, 20)
        assert len(await lines_of(client, batch.output_file_id)) == 5
        errors = await lines_of(client, batch.error_file_id)
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        assert len(errors) == 15

    async def test_a_batch_that_is_cancelled_before_it_is_read_runs_nothing(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database
    ) -> None:
        made = await created(client, [line("a")])
        assert (await client.batches.cancel(made.id)).status == "cancelling"
        async with carried.on():
            batch = await ended(client, made.id)
        assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", None, None)
        assert await ids(db) == []

    async def test_a_batch_that_has_ended_cannot_be_cancelled(
        self, client: openai.AsyncOpenAI, carried: Carried
    ) -> None:
        async with carried.on():
            made = await ended(client, (await created(client, [b"{}"])).id)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.cancel(made.id)
        assert refused.value.code == "batch_not_cancellable"

    async def test_lines_that_are_no_responses_yet_are_cancelled_in_the_file(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        made = await created(client, [line(str(number)) for number in range(20)])
        async with carried.on():
            await ended(client, made.id, "in_progress")
            await client.batches.cancel(made.id)
            batch = await ended(client, made.id)
        assert batch.status == "cancelled"
        errors = await lines_of(client, batch.error_file_id)
        assert [each["custom_id"] for each in errors] == [str(number) for number in range(20)]

    async def test_lines_that_wait_and_lines_that_run_are_cancelled_together(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line(str(number)) for number in range(50)])
            await until(lambda: has_responses(db, 50), what="all lines are responses")
            running = [await player.begin(response_id) for response_id in (await ids(db))[::10]]
            await client.batches.cancel(made.id)
            batch = await ended(client, made.id)
        assert batch.status == "cancelled"
        assert [each["custom_id"] for each in await lines_of(client, batch.error_file_id)] == list(map(str, range(50)))
        assert not any([await play.write(play.say("more")) for play in running]), "the fence holds"


class TestTrouble:
    async def test_a_batch_whose_file_is_gone_fails(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database
    ) -> None:
        made = await created(client, [line("a")])
        async with db.begin() as connection:
            await files.delete_within(connection, made.input_file_id)
        async with carried.on():
            batch = await ended(client, made.id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "file_not_found")

    async def test_a_line_whose_check_breaks_is_an_error_of_that_line(
        self, client: openai.AsyncOpenAI, carried: Carried, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = RuntimeError("a defect")

        async def accept(_self: Any, _project: str, request: Any, *_: Any, **__: Any) -> Any:
            raise broken

        monkeypatch.setattr(expander.RequestAcceptor, "accept", accept)
        async with carried.on():
            batch = await ended(client, (await created(client, [line("a"), line("b")])).id)
        assert [(each.line, each.code) for each in batch.errors.data] == [(1, "server_error"), (2, "server_error")]

    async def test_a_line_that_is_good_no_more_fails_alone(
        self,
        client: openai.AsyncOpenAI,
        carried: Carried,
        player: Player,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def read(raw: Any, *_: Any) -> Any:
            if raw.number == 2:
                raise LineError(2, "line_too_long", "It is too long by now.")
            return read_line(raw, *_)

        monkeypatch.setattr(expander, "read_line", read)
        async with carried.on(), player.at_work("Hello"):
            batch = await ended(client, (await created(client, [line(name) for name in "abc"])).id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 1)
        (error,) = await lines_of(client, batch.error_file_id)
        assert (error["custom_id"], error["error"]["code"]) == ("b", "line_too_long")

    async def test_all_lines_are_due_when_their_batch_is_and_keep_their_order(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        async with carried.on():
            await created(client, [line(str(number)) for number in range(20)])
            await until(lambda: has_responses(db, 20), what="all lines are responses")
        found = await db.execute(
            text(
                "SELECT r.batch_line, r.rank, r.due_at = b.due_at AS is_due FROM responses r"
                " JOIN batches b ON b.id = r.batch_id ORDER BY r.rank, r.position"
            )
        )
        assert [row.batch_line for row in found] == list(range(1, 21))
        assert len({row.rank for row in found}) == 1 and all(row.is_due for row in found)

    async def test_lines_become_responses_as_those_before_them_end(
        self,
        client: openai.AsyncOpenAI,
        carried: Carried,
        player: Player,
        db: Database,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        monkeypatch.setattr(expander, "LINES_AHEAD", 5)
        await alive(db, model=MODEL)
        most = 5 + expander.AHEAD_OF_SLOT * SLOTS
        seen = set[int]()
        async with carried.on():
            made = await created(client, [line(str(number)) for number in range(4 * most)])
            await until(lambda: has_responses(db, most), what="as many lines are responses as may be")
            while (batch := await client.batches.retrieve(made.id)).status != "completed":
                unfinished = await ids(db, "queued")
                seen.add(len(unfinished))
                for response_id in unfinished[:5]:
                    await player.answer("Hello", response_id=response_id)
        assert max(seen) <= most
        assert batch.request_counts.completed == 4 * most
        answers = await lines_of(client, batch.output_file_id)
        assert [each["custom_id"] for each in answers] == list(map(str, range(4 * most)))

    async def test_lines_of_several_models_do_not_wait_for_each_other_in_the_file(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "LINES_AHEAD", 4)
        async with carried.on():
            await created(
                client, [line(str(number), model=(MODEL, "org/other-model")[number % 2]) for number in range(20)]
            )
            await until(lambda: has_responses(db, 20), what="all lines are responses")

    async def test_operators_see_the_lines_that_are_in_the_file(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expander, "STEP_LINES", 3)
        monkeypatch.setattr(expander, "LINES_AHEAD", 6)
        async with carried.on():
            await created(client, [line(str(number)) for number in range(20)])
            await until(lambda: has_responses(db, 6), what="as many lines are responses as may be")
        assert (await fleet.read(db, 0.0)).in_files == [LinesInFiles(f"model.{MODEL}", "default", 14)]
        for by in get_args(backlog.By):
            (entry,) = added_up(await backlog.read(db, by), by, {})
            assert (entry.waiting, entry.in_files, entry.unfinished) == (6, 14, 20)

    async def test_the_steps_that_make_responses_send_the_first_of_them(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database
    ) -> None:
        await alive(db, model=MODEL)
        async with carried.on():  # and nobody else dispatches
            await created(client, [line(str(number)) for number in range(SLOTS)])
            open_to_all = SLOTS - SLOTS // KEPT_PART
            await until(lambda: _are_sent(db, open_to_all), what="as many are sent as the worker has room for")


async def _are_sent(db: Database, count: int) -> bool:
    (row,) = await db.execute(text("SELECT count(*) AS sent FROM responses WHERE sent_at IS NOT NULL"))
    return bool(row.sent == count)


class TestWindow:
    async def test_what_has_not_ended_in_its_window_is_expired(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line("a"), line("b")])
            await until(lambda: has_responses(db, 2), what="both lines are responses")
            await player.answer("Hello", response_id=(await ids(db))[0])
            async with db.begin() as connection:
                await connection.execute(text("UPDATE batches SET due_at = now()"))
            batch = await ended(client, made.id)
        assert (batch.status, batch.request_counts.completed) == ("expired", 1)
        assert [each["error"]["code"] for each in await lines_of(client, batch.error_file_id)] == ["batch_expired"]
        assert len(await lines_of(client, batch.output_file_id)) == 1


class TestBound:
    async def test_a_file_may_have_some_bytes_for_each_line_of_a_batch(
        self, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "MAX_BYTES", 100)
        monkeypatch.setattr(service, "LINE_BYTES", 1)
        with pytest.raises(openai.BadRequestError) as caught:
            await created(client, [line("a", input="a" * 50_000)])
        assert (caught.value.code, caught.value.param) == ("file_too_large", "input_file_id")
        assert (await created(client, [line("a", input="a" * 40_000)])).status == "validating"

    async def test_of_two_at_the_same_time_the_bound_lets_one_through(
        self, client: openai.AsyncOpenAI, api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted: list[str] = []
        create = rows.create

        async def other_is_here() -> bool:
            return len(counted) == 2 or bool(await db.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted")))

        async def together(connection: Any, new: Any) -> None:
            counted.append(new.id)
            await until(other_is_here, what="the other one has counted, or waits for its turn")
            await create(connection, new)

        monkeypatch.setattr(service, "MAX_UNFINISHED", 1)
        monkeypatch.setattr(rows, "create", together)
        sent = {"input_file_id": await uploaded(client, line("a")), "endpoint": RESPONSES, "completion_window": "24h"}
        async with serving(api.runtime.settings) as other:  # Within one process they take turns.
            answers = await asyncio.gather(*(each.client.post("/v1/batches", json=sent) for each in (api, other)))
        refused, made = sorted(answers, key=lambda answer: answer.status_code, reverse=True)
        assert (made.status_code, refused.status_code, refused.json()["error"]["code"]) == (
            200,
            429,
            "too_many_batches",
        )
        assert int(refused.headers["retry-after"]) > 0


class TestRetry:
    async def test_a_retry_has_the_lines_without_an_answer(
        self, client: openai.AsyncOpenAI, api: Api, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line(str(number)) for number in range(4)])
            await until(lambda: has_responses(db, 4), what="all lines are responses")
            play = await player.begin((await ids(db))[2])
            await play.failed("server_error", "It broke.")
            async with player.at_work("Hello"):
                await ended(client, made.id)
                retried = (await api.client.post(f"/v1/batches/{made.id}/retry_failed")).json()
                assert retried["retry_of"] == made.id
                batch = await ended(client, retried["id"])
                nothing = await api.client.post(f"/v1/batches/{batch.id}/retry_failed")
        assert (batch.status, batch.request_counts.total, batch.request_counts.completed) == ("completed", 1, 1)
        assert [each["custom_id"] for each in await lines_of(client, batch.output_file_id)] == ["2"]
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (400, "nothing_to_retry")

    async def test_of_retries_at_the_same_time_there_is_one(
        self, client: openai.AsyncOpenAI, api: Api, carried: Carried, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line("a")])
            await until(lambda: has_responses(db, 1), what="the line is a response")
            await client.batches.cancel(made.id)
            await ended(client, made.id)
        path = f"/v1/batches/{made.id}/retry_failed"
        answers = await asyncio.gather(*(api.client.post(path) for _ in range(5)))
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len(await retry_files(client)) == 1

    async def test_what_dies_or_is_refused_before_the_batch_is_there_leaves_no_file(
        self, client: openai.AsyncOpenAI, api: Api, carried: Carried, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with carried.on():
            made = await created(client, [line("a")])
            await until(lambda: has_responses(db, 1), what="the line is a response")
            await client.batches.cancel(made.id)
            await ended(client, made.id)
        inserting, go_on, create = asyncio.Event(), asyncio.Event(), rows.create

        async def dies(*args: Any) -> None:
            await create(*args)
            inserting.set()
            await go_on.wait()
            raise StoreUnavailable

        path = f"/v1/batches/{made.id}/retry_failed"
        with monkeypatch.context() as patched:
            patched.setattr(rows, "create", dies)
            posting = asyncio.create_task(api.client.post(path))
            await inserting.wait()
            assert await retry_files(client) == []  # What others see now is what a kill would leave.
            go_on.set()
            assert (await posting).status_code == 503
        with monkeypatch.context() as patched:
            patched.setattr(service, "MAX_UNFINISHED", 0)
            assert (await api.client.post(path)).json()["error"]["code"] == "too_many_batches"
        assert await retry_files(client) == []
        retried = (await api.client.post(path)).json()
        assert [file.id for file in await retry_files(client)] == [retried["input_file_id"]]


async def retry_files(client: openai.AsyncOpenAI) -> list[Any]:
    return [file async for file in client.files.list() if file.filename.endswith("_retry.jsonl")]


class TestResults:
    async def test_a_follower_reads_every_result_once_however_often_it_is_cut(
        self, client: openai.AsyncOpenAI, api: Api, carried: Carried, player: Player
    ) -> None:
        seen: list[Any] = []
        async with carried.on(), player.at_work("Hello"):
            made = await created(client, [line(str(number)) for number in range(50)])
            while not seen or "batch" not in seen[-1]:
                async with api.client.stream(
                    "GET", f"/v1/batches/{made.id}/results", params={"after": len(seen)}
                ) as response:
                    assert response.status_code == 200
                    seen += await _some(response, 7)
        assert [each["number"] for each in seen[:-1]] == list(range(1, 51))
        assert {each["custom_id"] for each in seen[:-1]} == {str(number) for number in range(50)}
        assert seen[-1]["batch"]["id"] == made.id

    async def test_a_follower_waits_while_postgres_is_away(
        self, client: openai.AsyncOpenAI, api: Api, carried: Carried, player: Player, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found by the fault suite: the stream broke off, and an error was logged."""
        trouble = [StoreUnavailable(), None, StoreBusy(), None, None, StoreUnavailable()] * 2

        async def troubled(*arguments: Any) -> Any:
            if trouble and (error := trouble.pop()) is not None:
                raise error
            return await read_results(*arguments)

        monkeypatch.setattr(service, "read_results", troubled)
        monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.01)
        made = await created(client, [line(str(number)) for number in range(5)])
        following = asyncio.create_task(api.client.get(f"/v1/batches/{made.id}/results"))
        await until(lambda: len(trouble) < 6, what="it reads")
        async with carried.on(), player.at_work("Hello"):
            answer = await following
        lines = [orjson.loads(each) for each in answer.text.splitlines() if each]
        assert [each.get("number") for each in lines] == [1, 2, 3, 4, 5, None]
        assert (lines[-1]["batch"]["status"], trouble) == ("completed", [])


async def _some(response: httpx.Response, count: int) -> list[Any]:
    """The next lines, at most so many: then the reader is cut."""
    found: list[Any] = []
    async for each in response.aiter_lines():
        if each.strip():
            found.append(orjson.loads(each))
        if len(found) == count:
            break
    return found


class TestWait:
    async def test_a_waiting_client_is_answered_once_the_batch_has_ended(
        self, client: openai.AsyncOpenAI, api: Api, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line("a")])
            await until(lambda: has_responses(db, 1), what="the line is a response")
            waiting = asyncio.create_task(api.client.get(f"/v1/batches/{made.id}", params={"wait": 60}))
            await player.answer("Hello")
            assert (await waiting).json()["status"] == "completed"


class TestRepeats:
    KEY: ClassVar = {"Idempotency-Key": "nightly-7"}

    async def test_a_request_that_is_repeated_with_its_key_gets_the_same_batch_also_without_its_file(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player
    ) -> None:
        made = await created(client, [line("a")], extra_headers=self.KEY, metadata={"job": "7"})
        sent = {"input_file_id": made.input_file_id, "endpoint": "/v1/responses", "metadata": {"job": "7"}}
        create = partial(client.batches.create, completion_window="24h", **sent)
        again = await asyncio.gather(*(create(extra_headers=self.KEY) for _ in range(3)))
        assert {each.id for each in again} == {made.id}
        assert (await create()).id != made.id, "without the key it is another one"
        async with carried.on(), player.at_work("Hello"):
            for batch in (await client.batches.list()).data:
                await ended(client, batch.id)
        await client.files.delete(made.input_file_id)
        repeated = await create(extra_headers=self.KEY)
        assert (repeated.id, repeated.status) == (made.id, "completed")

    async def test_requests_at_once_with_one_key_make_one_batch(self, client: openai.AsyncOpenAI) -> None:
        file = await uploaded(client, line("a"))
        sent: dict[str, Any] = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
        made = [client.batches.create(extra_headers=self.KEY, **sent) for _ in range(8)]
        assert len({each.id for each in await asyncio.gather(*made)}) == 1
        assert len((await client.batches.list()).data) == 1

    @pytest.mark.parametrize("field", [{"metadata": {"job": "8"}}, {"completion_window": "8h"}])
    async def test_another_body_with_the_same_key_is_refused(self, client: openai.AsyncOpenAI, field: Any) -> None:
        made = await created(client, [line("a")], extra_headers=self.KEY)
        sent = {"input_file_id": made.input_file_id, "endpoint": "/v1/responses", "completion_window": "24h", **field}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.create(extra_headers=self.KEY, **sent)
        assert (refused.value.code, refused.value.param) == ("idempotency_key_reused", "Idempotency-Key")


class TestRefusals:
    async def test_a_file_must_be_there_and_have_the_purpose(self, client: openai.AsyncOpenAI) -> None:
        for file_id, code in (
            ("file_missing", "file_not_found"),
            (await uploaded(client, b"{}", purpose="user_data"), "invalid_purpose"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.batches.create(input_file_id=file_id, endpoint="/v1/responses", completion_window="24h")
            assert (refused.value.code, refused.value.param) == (code, "input_file_id")

    @pytest.mark.parametrize(
        ("field", "value"), [("endpoint", "/v1/embeddings"), ("completion_window", "1h"), ("other", 1)]
    )
    async def test_a_field_that_is_wrong_is_named(self, api: Api, field: str, value: Any) -> None:
        body = {"input_file_id": "file_1", "endpoint": RESPONSES, "completion_window": "24h", field: value}
        refused = await api.client.post("/v1/batches", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)

    async def test_an_unknown_batch_is_not_found(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_missing")

    async def test_the_file_of_an_unfinished_batch_stays(self, client: openai.AsyncOpenAI, carried: Carried) -> None:
        made = await created(client, [b"{}"])
        with pytest.raises(openai.BadRequestError) as refused:
            await client.files.delete(made.input_file_id)
        assert refused.value.code == "file_in_use"
        async with carried.on():
            await ended(client, made.id)
        await client.files.delete(made.input_file_id)


async def test_batches_are_listed_the_newest_first(client: openai.AsyncOpenAI) -> None:
    made = [(await created(client, [line("a")])).id for _ in range(3)]
    first = await client.batches.list(limit=2)
    assert [each.id for each in first.data] == made[:0:-1]
    assert [each.id async for each in first] == made[::-1]
