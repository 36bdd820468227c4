"""An engine that is a vLLM server elsewhere: what a server may do, against one that does it (tests/support/
token_server.py). test_contract.py and test_resume.py have the same engine with vLLM's own server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.model_files import resolved
from config.models import VLLM_SERVER, Adapter, Upstream, load_models
from config.settings import ConfigError
from tests.engine.cases import GREEDY, demo_model, new_id, seeing
from tests.models.pictures import Picture
from tests.support.installations import VISION
from tests.support.served_engine import served
from tests.support.token_server import TEXT, TokenServer, serving
from tests.support.waiting import until
from workers.engine import make_engine
from workers.engine.base import (
    CannotContinue,
    Engine,
    EngineAway,
    EngineDelta,
    EngineError,
    EngineRequest,
    InvalidSampling,
    PromptTooLong,
    RequestAborted,
    Sampling,
)
from workers.engine.output_format import OutputSpec
from workers.engine.server.frame_size import MAX_FRAME_TOKENS, FrameSize
from workers.engine.server.frames import BadFrame, ErrorFrame, Frames, Piece
from workers.engine.server.introduction import load_of
from workers.engine.vllm.output.thoughts import Start

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="package")]

PROMPT = (5, 6, 7)
SEEDED = Sampling(temperature=1.0, extra={"seed": 3})


@asynccontextmanager
async def attached(server: TokenServer, **changes: Any) -> AsyncIterator[Engine]:
    upstream = Upstream((server.url,), changes.pop("api_key", None), 8)
    model = replace(demo_model(), engine=VLLM_SERVER, engine_args={}, context_length=None, upstream=upstream, **changes)
    engine = await asyncio.to_thread(make_engine, model)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


async def deltas(engine: Engine, sampling: Sampling = GREEDY, committed: tuple[int, ...] = ()) -> list[EngineDelta]:
    async with aclosing(engine.generate(EngineRequest(new_id(), PROMPT, sampling, committed=committed))) as stream:
        return [delta async for delta in stream]


def tokens(found: list[EngineDelta]) -> tuple[int, ...]:
    return tuple(token for delta in found for token in delta.token_ids)


async def test_an_answer_goes_on_behind_committed_tokens_seeded_or_not() -> None:
    async with serving() as server, attached(server) as engine:
        assert (engine.slots, engine.cache_tokens, engine.context_length) == (8, 1600, 512)
        whole = await deltas(engine)
        assert tokens(whole) == TEXT and whole[-1].cached_tokens == 16
        assert tokens(await deltas(engine, committed=TEXT[:9])) == TEXT[9:]
        seeded = tokens(await deltas(engine, SEEDED))
        assert engine.can_continue(SEEDED)
        assert tokens(await deltas(engine, SEEDED, seeded[:9])) == seeded[9:] != TEXT[9:]
        assert [each["sampling_params"]["max_tokens"] for each in server.requests] == [509, 500, 509, 509]


async def test_without_the_logits_processor_what_has_a_state_cannot_continue(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(can_force=False) as server, attached(server) as engine:
        assert engine.can_continue(GREEDY) and not engine.can_continue(SEEDED)
        assert tokens(await deltas(engine, committed=TEXT[:9])) == TEXT[9:]
        with pytest.raises(CannotContinue):
            await deltas(engine, SEEDED, TEXT[:9])
        assert "--logits-processors longhaul_forcing:ForcedPrefix" in caplog.text
        assert engine.device is not None and "without our logits processor" in engine.device


@pytest.mark.parametrize("has_priorities", [True, False])
async def test_one_request_shows_what_a_server_can_and_another_if_it_has_no_priorities(*, has_priorities: bool) -> None:
    async with serving() as server:
        server.has_priorities = has_priorities
        async with attached(server) as engine:
            assert server.asked.count("/inference/v1/generate") == (1 if has_priorities else 2)
            assert engine.can_continue(SEEDED)
            request = EngineRequest(new_id(), PROMPT, GREEDY, priority=3)
            assert tokens([delta async for delta in engine.generate(request)]) == TEXT
        assert server.requests[-1]["priority"] == (3 if has_priorities else 0)


async def test_operators_are_told_why_a_server_failed() -> None:
    async with serving() as server, attached(server) as engine:
        server.error_frame = {"code": 500, "message": "out of memory"}
        with pytest.raises(RequestAborted, match="out of memory"):
            await deltas(engine)


async def test_closing_a_stream_aborts_the_request_there() -> None:
    async with serving() as server, attached(server) as engine:
        server.pause.clear()
        stream = engine.generate(EngineRequest(new_id(), PROMPT, GREEDY))
        assert (await anext(stream)).token_ids == TEXT[:1]
        assert engine.running == 1
        await stream.aclose()
        await until(lambda: server.aborted == 1)
        assert engine.running == 0


@pytest.mark.parametrize(
    ("changes", "kind", "counts"),
    [
        ({"status": 429}, EngineAway, False),
        ({"status": 503, "headers": {"Retry-After": "0"}}, EngineAway, False),
        ({"status": 502}, EngineAway, False),
        ({"status": 401}, EngineAway, False),
        ({"has_route": False}, EngineAway, False),
        ({"status": 500}, RequestAborted, True),
        ({"cut_after": 3}, EngineAway, True),
        ({"cut_after": 3, "ends": True}, EngineAway, True),
        ({"raw": b"data: {]\n\n"}, RequestAborted, True),
        ({"raw": b'data: {"choices": [{"text": "of another version"}]}\n\n'}, RequestAborted, True),
        ({"error_frame": {"code": 500, "message": "it broke"}}, RequestAborted, True),
        ({"finish": "abort"}, RequestAborted, False),
    ],
)
async def test_a_server_that_fails_hands_the_response_over(
    changes: dict[str, Any], kind: type[EngineAway | RequestAborted], counts: bool
) -> None:
    async with serving() as server, attached(server) as engine:
        before = {name: getattr(server, name) for name in changes}
        for name, value in changes.items():
            setattr(server, name, value)
        with pytest.raises(kind) as raised:
            await deltas(engine)
        assert raised.value.counts is counts
        for name, value in before.items():
            setattr(server, name, value)
        await until(lambda: engine.slots == 8)
        assert tokens(await deltas(engine)) == TEXT


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"status": 400, "error": {"message": "must be small", "param": "top_k"}},
            InvalidSampling,
            "top_k: must be small",
        ),
        (
            {"error_frame": {"code": 400, "message": "The prompt is longer than the maximum model length of 512."}},
            PromptTooLong,
            "the input has 3 tokens, but the model's context holds 512",
        ),
        ({"error_frame": {"code": 400, "message": "out of vocabulary"}}, InvalidSampling, "out of vocabulary"),
    ],
)
async def test_what_a_server_refuses_fails_the_response(
    changes: dict[str, Any], kind: type[EngineError], text: str
) -> None:
    async with serving() as server, attached(server) as engine:
        for name, value in changes.items():
            setattr(server, name, value)
        with pytest.raises(kind, match=text):
            await deltas(engine)
        assert engine.slots == 8, "the server is there"


async def test_a_server_that_restarts_is_away_and_back_and_may_have_lost_its_logits_processor() -> None:
    async with serving() as server, attached(server) as engine:
        server.pause.clear()
        stream = engine.generate(EngineRequest(new_id(), PROMPT, GREEDY))
        await anext(stream)
        await server.stop()
        with pytest.raises(EngineAway) as raised:
            await anext(stream)
        assert raised.value.counts
        await until(lambda: engine.slots == 0)
        with pytest.raises(EngineAway) as again:
            await deltas(engine)
        assert not again.value.counts
        await engine.check()
        server.can_force = False
        await server.start()
        await until(lambda: engine.slots == 8)
        assert not engine.can_continue(SEEDED)
        assert tokens(await deltas(engine, committed=TEXT[:1])) == TEXT[1:]


async def test_a_server_that_hangs_is_away_and_its_requests_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.server.client.ANSWER_SECONDS", 0.2)
    async with serving() as server, attached(server) as engine:
        server.pause.clear()
        stream = engine.generate(EngineRequest(new_id(), PROMPT, GREEDY))
        await anext(stream)
        server.there.clear()
        with pytest.raises(EngineAway) as raised:
            await anext(stream)
        assert raised.value.counts and engine.slots == 0
        server.there.set()
        server.pause.set()
        await until(lambda: engine.slots == 8)


async def test_a_server_that_hangs_before_its_headers_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.server.client.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("workers.engine.server.watch.LOOK_SECONDS", 0.02)
    async with serving() as server, attached(server) as engine:
        server.there.clear()
        with pytest.raises(EngineAway, match="it does not answer"):
            await deltas(engine)
        assert (engine.running, engine.slots) == (0, 0)
        server.there.set()
        await until(lambda: engine.slots == 8)
        assert tokens(await deltas(engine)) == TEXT


@pytest.mark.parametrize("look_seconds", [60.0, 0.02])
async def test_a_full_server_gets_nothing_while_it_says_so_and_keeps_what_it_runs(
    look_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request finds out, or a look at the server."""
    now = [100.0]
    monkeypatch.setattr("workers.engine.server.client.monotonic", lambda: now[0])
    monkeypatch.setattr("workers.engine.server.watch.LOOK_SECONDS", look_seconds)
    async with serving(headers={"Retry-After": "20"}) as server, attached(server) as engine:
        server.pause.clear()
        stream = engine.generate(EngineRequest(new_id(), PROMPT, GREEDY))
        first = await anext(stream)
        server.is_full = True
        if look_seconds < 1:
            await until(lambda: engine.slots == 0)
        with pytest.raises(EngineAway) as raised:
            await deltas(engine)
        assert not raised.value.counts
        asked, now[0] = len(server.asked), 119.0
        with pytest.raises(EngineAway):
            await deltas(engine)
        server.pause.set()
        assert first.token_ids + tokens([delta async for delta in stream]) == TEXT
        assert engine.slots == 0 and len(server.asked) == asked
        server.is_full, now[0] = False, 120.0
        assert engine.slots == 8
        assert tokens(await deltas(engine)) == TEXT
        assert "/v1/models" not in server.asked[asked:], "it was never away"


@pytest.mark.parametrize(
    "page",
    [
        '{"data": [{"id": "demo", "max_model_len": "many"}]}',
        '{"data": [{"id": "demo"}, {"id": [], "parent": "demo"}, {"id": ["legal"], "parent": "demo"}]}',
    ],
)
async def test_a_page_that_cannot_be_read_makes_a_server_unfit_and_the_watch_goes_on(
    page: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workers.engine.server.watch.LOOK_SECONDS", 0.02)
    async with serving() as server, attached(server) as engine:
        await server.stop()
        await until(lambda: engine.slots == 0)
        server.pages["/v1/models"] = page
        await server.start()
        await until(lambda: "none of vLLM's" in caplog.text)
        await engine.check()
        server.pages.clear()
        await until(lambda: engine.slots == 8)


async def test_metrics_that_are_no_numbers_count_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.server.watch.LOOK_SECONDS", 0.02)
    async with serving() as server, attached(server) as engine:
        server.running, server.waiting = 4, 3
        await until(lambda: engine.slots == 5)
        server.pages["/metrics"] = "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n"
        await until(lambda: engine.slots == 8)
        await engine.check()
    assert load_of('vllm:num_requests_waiting{engine="0"} 3.0\nvllm:num_requests_waiting{engine="1"} NaN').waiting == 3
    assert load_of('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0').cache_tokens is None


async def test_what_waits_there_for_others_leaves_fewer_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.server.watch.LOOK_SECONDS", 0.02)
    async with serving() as server, attached(server) as engine:
        server.running, server.waiting = 4, 3
        await until(lambda: engine.slots == 5)
        server.waiting = 100
        await until(lambda: engine.slots == 1)
        server.waiting = server.running = 0
        await until(lambda: engine.slots == 8)


async def test_a_worker_waits_for_a_server_that_is_not_there_yet() -> None:
    server = TokenServer()
    async with asyncio.TaskGroup() as group:

        async def attach() -> tuple[int, ...]:
            async with attached(server) as engine:
                return tokens(await deltas(engine))

        task = group.create_task(attach())
        await asyncio.sleep(0.05)
        assert not task.done()
        await server.start()
    assert task.result() == TEXT
    await server.stop()


@pytest.mark.parametrize(
    ("there", "here", "text"),
    [
        ({"has_route": False}, {}, "--enable-scale-out"),
        ({"api_key": "secret"}, {"api_key": "wrong"}, "api_key"),
        ({}, {"adapters": (Adapter("legal", ""),)}, "adapter 'legal'"),
    ],
)
async def test_a_server_that_does_not_fit_is_said_at_the_start(
    there: dict[str, Any], here: dict[str, Any], text: str
) -> None:
    async with serving(**there) as server:
        with pytest.raises(ConfigError, match=text):
            async with attached(server, **here):
                pass


async def test_the_key_comes_from_the_environment_and_an_adapter_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "secret")
    async with (
        serving(api_key="secret", adapters=["legal"]) as server,
        attached(server, api_key="${GPU_KEY}", adapters=(Adapter("legal", ""),)) as engine,
    ):
        assert "secret" not in repr(engine._model)  # type: ignore[attr-defined]
        await deltas(engine, replace(GREEDY, adapter="legal"))
        await deltas(engine)
        assert [request["model"] for request in server.requests] == ["legal", "demo"]


async def test_a_grammar_holds_from_the_first_token_and_thoughts_are_part_of_it() -> None:
    """Nobody can see which reasoning parser a server has, so none is relied on."""
    async with serving() as server, attached(server) as engine:
        structured = (await engine.output_format(OutputSpec(text_format={"type": "json_object"}))).structured
        assert structured is not None
        marks = structured.thoughts
        for start in Start:
            prompt = [5, 6, 7, *marks.prompt(start)]
            async with aclosing(
                engine.generate(EngineRequest(new_id(), prompt, Sampling(structured=structured)))
            ) as stream:
                assert [delta async for delta in stream]
        formats = [
            json.loads(each["sampling_params"]["structured_outputs"]["structural_tag"]) for each in server.requests
        ]
        opened, closed, free = (each["format"] for each in formats)
        thoughts = {"type": "tag", "content": {"type": "any_text"}, "end": marks.end}
        assert closed == json.loads(structured.tag)["format"]
        assert opened["elements"] == [{**thoughts, "begin": ""}, closed]
        assert free["elements"] == [{"type": "optional", "content": {**thoughts, "begin": marks.begin}}, closed]
        assert all(each["reasoning_ended"] is True for each in server.requests)


def frame(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]}).encode() + b"\n\n"


BROKEN = b'data: {"error": {"code": 503, "message": "broke"}}\n\n'


async def test_frames_come_in_any_pieces_and_the_last_waits_for_the_end() -> None:
    whole = frame(token_ids=[1]) + frame(token_ids=[2, 3]) + frame(token_ids=[4], finish_reason="stop")
    whole += b'data: {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 5}}}\n\ndata: [DONE]\n\n'
    for size in (1, 7, len(whole)):
        frames = Frames()
        pieces = [piece for start in range(0, len(whole), size) for piece in frames.feed(whole[start : start + size])]
        assert [token for piece in pieces for token in piece.token_ids] == [1, 2, 3, 4]
        assert [piece.finish_reason for piece in pieces][-1] == "stop" and pieces[-1].cached_tokens == 5


async def pieces_of(tokens: int) -> AsyncIterator[Piece]:
    for _ in range(tokens):
        yield Piece([1])


@pytest.mark.parametrize(
    ("seconds", "tokens", "awaited", "frame"),
    [
        (0.0049, 40, 0.0, 3),
        (0.0049, 40, 0.05, 9),
        (0.05, 40, 0.0, 1),
        (0, 40, 0.0, MAX_FRAME_TOKENS),
        (1, 9, 0.1, 1),
    ],
)
async def test_a_frame_has_as_many_tokens_as_come_in_20_ms_or_before_the_worker_looks(
    seconds: float, tokens: int, awaited: float, frame: int
) -> None:
    passed = 0.0
    size = FrameSize(lambda: passed)
    assert size.tokens_in(awaited) == 1, "nothing is known yet"
    async for _ in size.measured(pieces_of(tokens + 1)):
        passed += seconds
    assert size.tokens_in(awaited) == frame


async def test_a_frame_of_another_kind_and_an_error_are_told_apart() -> None:
    for data in (b"data: nonsense\n\n", b'data: {"choices": [{}]}\n\n', b"data: 5\n\n"):
        with pytest.raises(BadFrame):
            list(Frames().feed(data))
    with pytest.raises(ErrorFrame, match="broke") as raised:
        list(Frames().feed(BROKEN))
    assert raised.value.code == 503
    finished = frame(token_ids=[4], finish_reason="stop")
    assert [piece.token_ids for piece in Frames().feed(finished + BROKEN)] == [[4]], "the answer is whole"


@pytest.mark.parametrize(
    ("code", "unreadable", "kind"),
    [(500, b"", RequestAborted), (400, b"", InvalidSampling), (500, b"data: {]\n\n", RequestAborted)],
)
async def test_tokens_that_come_together_with_an_error_are_delivered_before_it(
    code: int, unreadable: bytes, kind: type[Exception]
) -> None:
    raw = frame(token_ids=[1000]) + frame(token_ids=[1001, 1002]) + unreadable
    async with serving() as server, attached(server) as engine:
        server.raw, server.error_frame = raw, {"code": code, "message": "broke"}
        found = []
        with pytest.raises(kind):
            async with aclosing(engine.generate(EngineRequest(new_id(), PROMPT, GREEDY))) as stream:
                async for delta in stream:
                    found += delta.token_ids
        assert found == [1000, 1001, 1002]


@pytest.mark.long
async def test_images_go_by_their_urls_and_make_the_tokens_that_they_make_here(tmp_path: Path) -> None:
    """With the tiny vision model, behind vLLM's own server."""
    (tmp_path / "models.toml").write_text(VISION)
    own = replace(resolved(load_models(tmp_path / "models.toml").models[0])[0])
    here = await asyncio.to_thread(make_engine, own)
    await here.start()
    try:
        async with served(here._loaded.llm, own.name) as url:  # type: ignore[attr-defined]
            upstream = Upstream((url,), None, 8)
            model = replace(own, engine=VLLM_SERVER, engine_args={}, context_length=None, upstream=upstream)
            there = await asyncio.to_thread(make_engine, model)
            try:
                await there.start()
                for picture in (Picture("red", "square"), Picture("blue", "triangle")):
                    await same_answer(here, there, seeing(picture))
            finally:
                await there.stop()
    finally:
        await here.stop()


async def same_answer(here: Engine, there: Engine, messages: list[dict[str, Any]]) -> None:
    answers = []
    for engine in (here, there):
        prompt = await engine.render(messages, {}, (), "salt")
        sampling = Sampling(temperature=0.0, extra={"cache_salt": "salt"})
        async with aclosing(engine.generate(EngineRequest(new_id(), prompt, sampling))) as stream:
            answers.append((tuple(prompt), tokens([delta async for delta in stream])))
    assert answers[0] == answers[1]
    prompt, whole = await there.render(messages, {}, (), "salt"), answers[0][1]
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.0, extra={"seed": 3})):
        async with aclosing(there.generate(EngineRequest(new_id(), prompt, sampling, committed=whole[:3]))) as stream:
            assert tokens([delta async for delta in stream]) == whole[3:]
