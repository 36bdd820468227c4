"""The real engine: what it adds to the contract."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.heavy import PROJECT
from app.protocol.requests.items.images import MAX_PIXELS
from config.settings import ConfigError
from tests.engine.cases import COUNTED, GREEDY, MANY_SCRIPTS, Case, SharedEngine, asking, demo_model
from workers.engine import make_engine
from workers.engine.base import EngineDead, EngineRequest, InvalidSampling, Sampling
from workers.engine.output_format import Structured

package = pytest.mark.asyncio(loop_scope="package")


@package
@pytest.mark.vllm
async def test_vllm_gathers_tokens_for_a_delta(vllm_case: Case) -> None:
    prompt, sampling = await vllm_case.prompt(), replace(GREEDY, max_tokens=50, logprobs=1)
    stream = vllm_case.engine.generate(EngineRequest("gathered", prompt, sampling, tokens_per_delta=16))
    deltas = [delta async for delta in stream]
    assert len(deltas) <= 1 + -(-49 // 16)  # the first token comes alone
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    assert sum(len(delta.token_ids) for delta in deltas) == 50


@package
@pytest.mark.vllm
async def test_a_repeated_prompt_comes_from_the_prefix_cache(vllm_case: Case) -> None:
    prompt = await vllm_case.prompt("Tell me again: " * 20)
    first = await vllm_case.deltas(prompt, replace(GREEDY, max_tokens=2))
    second = await vllm_case.deltas(prompt, replace(GREEDY, max_tokens=2))
    assert first[-1].cached_tokens < len(prompt) // 2
    assert second[-1].cached_tokens >= len(prompt) // 2


@package
@pytest.mark.vllm
@pytest.mark.parametrize(
    "content", ["Hi! 你好 👋", [{"type": "text", "text": "Hi!"}, {"type": "text", "text": "You."}]]
)
async def test_a_prompt_is_the_same_whether_it_is_rendered_at_once_or_in_a_thread(
    vllm_case: Case, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": content},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]
    before = copy.deepcopy(messages)
    at_once = await vllm_case.engine.render(messages, vllm_case.template_args)
    monkeypatch.setattr("workers.engine.vllm.rendering.SHORT", 0)
    assert await vllm_case.engine.render(messages, vllm_case.template_args) == at_once
    assert messages == before


@package
@pytest.mark.vllm
async def test_others_get_prompts_and_tokens_while_prompts_are_refused_that_are_far_too_long(vllm_case: Case) -> None:
    large = [asyncio.ensure_future(vllm_case.prompt(f"{n} " + "word " * 800_000)) for n in range(3)]
    await asyncio.sleep(0)
    prompts = [await vllm_case.prompt(), await vllm_case.prompt("word " * 300)]  # on the event loop, and in a thread
    for prompt in prompts:
        assert await vllm_case.tokens(prompt, replace(GREEDY, max_tokens=8))
    for each in large:
        each.cancel()
    await asyncio.gather(*large, return_exceptions=True)


@package
@pytest.mark.vllm
async def test_many_streams_closed_at_once_all_leave_the_engine(vllm_case: Case) -> None:
    async def read() -> None:
        async for _ in vllm_case.stream(prompt, replace(GREEDY, extra={"ignore_eos": True})):
            begun.release()

    prompt, begun = await vllm_case.prompt(), asyncio.Semaphore(0)
    readers = [asyncio.create_task(read()) for _ in range(40)]
    for _ in readers:
        await begun.acquire()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert vllm_case.engine.running == 0
    assert vllm_case.text(await vllm_case.tokens(prompt)) == COUNTED


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=30), st.just(MANY_SCRIPTS)), cut=st.integers(0, 3))
@pytest.mark.vllm
def test_tokenizers_without_a_rust_core_decode_alike(vllm_case: Case, text: str, cut: int) -> None:
    from workers.engine.vllm.decoder import VllmDecoder

    tokens = vllm_case.encode(text.encode(errors="replace").decode())
    tokens = [*tokens[: len(tokens) - cut], vllm_case.special[-1]]
    tokenizer = vllm_case.engine._loaded.front.tokenizer  # type: ignore[attr-defined]
    decoder = VllmDecoder(SimpleNamespace(decode=tokenizer.decode))
    assert decoder.feed(tokens) + decoder.flush() == vllm_case.text(tokens)


BAD_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("'no_such_argument'", {"engine_args": {"no_such_argument": 1}}),
    ("'model'", {"engine_args": {"model": "other"}}),
    ("'max_model_len'", {"engine_args": {"max_model_len": 100}}),
    ("dtype", {"engine_args": {"dtype": "float7"}}),
    ("block_size", {"engine_args": {"block_size": "many"}}),
    ("'/no/such/folder'", {"path": "/no/such/folder"}),
    ("config.json", {"path": str(Path(__file__).parent)}),
    ("max_model_len", {"context_length": 10**6}),
]


@pytest.mark.vllm
@pytest.mark.parametrize(("named", "fields"), BAD_MODELS, ids=[named for named, _ in BAD_MODELS])
async def test_a_model_that_cannot_be_served_is_refused_in_one_line(named: str, fields: dict[str, Any]) -> None:
    engine = await asyncio.to_thread(make_engine, demo_model(**fields))
    with pytest.raises(ConfigError) as caught:
        await engine.start()
    await engine.stop()
    assert str(caught.value).startswith("model 'longhaul-demo': ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_vllm_the_model_is_refused_in_one_line() -> None:
    with (
        mock.patch.dict(sys.modules, {"workers.engine.vllm.engine": None}),
        mock.patch.dict(os.environ),
        pytest.raises(ConfigError, match=r"^model 'longhaul-demo': vLLM cannot be imported here \(.*\)$"),
    ):
        make_engine(demo_model())


@pytest.mark.parametrize(("path", "offline"), [("some/hub-id", None), (str(Path(__file__).parent), "1")])
def test_vllm_gets_a_quiet_environment_and_spawns(path: str, offline: str | None) -> None:
    with mock.patch.dict(sys.modules, {"workers.engine.vllm.engine": None}), mock.patch.dict(os.environ, clear=True):
        os.environ |= {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
        with pytest.raises(ConfigError):
            make_engine(demo_model(path=path))
        assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"  # an operator's value stays
        assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"  # except this one
        assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
        assert os.environ["VLLM_MAX_IMAGE_PIXELS"] == str(MAX_PIXELS)
        assert os.environ.get("HF_HUB_OFFLINE") == offline


@package
@pytest.mark.vllm
async def test_a_grammar_that_gets_dear_ends_its_own_response_alone_and_names_its_field(vllm_case: Case) -> None:
    """Four of one project, of which each text has ever more readings; another's stream beside them."""
    grammar = {"type": "grammar", "grammar": "root ::= v+\nv ::= w+\nw ::= x+\nx ::= [^\\x00]+ | [^\\x00] x"}
    tag = json.dumps({"type": "structural_tag", "format": grammar})
    prompt, undisturbed = await vllm_case.prompt(), await vllm_case.tokens(await vllm_case.prompt())
    dear = Sampling(temperature=1.0, structured=Structured(tag, "tools[0].format"), extra={"ignore_eos": True})

    async def ended() -> str:
        PROJECT.set("of the grammars")
        with pytest.raises(InvalidSampling) as caught:
            await vllm_case.tokens(prompt, dear)
        return str(caught.value)

    ends = [asyncio.create_task(ended()) for _ in range(4)]
    for _ in range(3):
        assert await vllm_case.tokens(prompt) == undisturbed
    for said in await asyncio.gather(*ends):
        assert said.startswith("tools[0].format: its grammar takes ever longer to check")


@package
@pytest.mark.vllm
async def test_readers_of_an_engine_that_is_killed_get_an_error(shared_engine: SharedEngine) -> None:
    """The last test of this engine: the next one would start another."""
    case = await shared_engine.case()
    engine, prompt = case.engine, await case.prompt()
    stream = case.stream(prompt, Sampling(temperature=0.0, extra={"ignore_eos": True}))
    await anext(stream)
    [process] = shared_engine.processes
    os.kill(process, signal.SIGKILL)
    with pytest.raises(EngineDead) as had_request:
        async for _ in stream:
            pass
    assert had_request.value.counts
    with pytest.raises(EngineDead):
        await engine.check()
    with pytest.raises(EngineDead) as came_late:
        await anext(case.stream(prompt, GREEDY))
    assert not came_late.value.counts
    with pytest.raises(EngineDead):
        await engine.render(asking("Hello!"), {})
    assert engine.running == 0
    for _ in range(2):
        await engine.stop()
