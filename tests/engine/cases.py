"""What the contract tests (`test_contract.py`) must know of each engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from config.model_files import resolved
from config.models import VLLM_SERVER, ServedModel, Upstream, load_models
from config.settings import Settings
from tests.engine.processes import engine_processes
from tests.models.pictures import Picture, data_url, draw
from tests.support.scripted import SCRIPTED
from tests.support.served_engine import served
from workers.engine import make_engine
from workers.engine.base import Engine, EngineDead, EngineDelta, EngineRequest, Message, Sampling
from workers.engine.output_format import OutputSpec
from workers.worker import with_statistics

MODELS = Path(__file__).parents[2] / "config" / "models.toml"

COUNTED = ", ".join(str(number) for number in range(1, 61)) + "."
MANY_SCRIPTS = "你好，世界！ Γειά σου, Κόσμε! 👋🌍🚂 — très à la carte, señor"  # noqa: RUF001

STEP = 64
"""Tokens that `SharedEngine` reads in one step, and requests that it runs at once."""

_numbers = count(1)


@dataclass(frozen=True)
class Case:
    """A running engine, with prompts and tokens that fit it."""

    engine: Engine
    counting: str
    """The question that gets the reply COUNTED."""
    encode: Callable[[str], list[int]]
    """The tokens of a text."""
    special: tuple[int, ...]
    """Some special tokens."""
    pad: int
    """A token that may be repeated before a prompt."""
    template_args: Mapping[str, Any]

    async def prompt(self, text: str | None = None) -> tuple[int, ...]:
        return await self.engine.render(asking(text or self.counting), self.template_args)

    def stream(self, prompt: Sequence[int], sampling: Sampling | None = None, request_id: str | None = None) -> Any:
        return self.engine.generate(EngineRequest(request_id or new_id(), prompt, sampling or GREEDY))

    async def deltas(self, prompt: Sequence[int], sampling: Sampling | None = None) -> list[EngineDelta]:
        async with aclosing(self.stream(prompt, sampling)) as stream:
            return [delta async for delta in stream]

    async def tokens(self, prompt: Sequence[int], sampling: Sampling | None = None) -> list[int]:
        return [token for delta in await self.deltas(prompt, sampling) for token in delta.token_ids]

    def text(self, tokens: Sequence[int]) -> str:
        decoder = self.engine.decoder()
        return decoder.feed(tokens) + decoder.flush()


GREEDY = Sampling(temperature=0.0)


def asking(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def new_id() -> str:
    return f"test-{next(_numbers)}"


def demo_model(**changes: Any) -> ServedModel:
    """The repository's demo model; `changes` are fields of ServedModel."""
    model = load_models(MODELS).get("longhaul-demo")
    assert model is not None
    return replace(resolved(model)[0], **changes)


def scripted_model(context_length: int | None = 4096, **engine_args: Any) -> ServedModel:
    return ServedModel("scripted", "", "model.scripted", SCRIPTED, context_length, engine_args)


class SharedServer:
    """The shared engine behind vLLM's own HTTP server, as a worker elsewhere has it."""

    def __init__(self, shared: SharedEngine) -> None:
        self._shared = shared
        self._behind: Engine | None = None
        self._case: Case | None = None
        self._open = AsyncExitStack()

    async def case(self) -> Case:
        own = await self._shared.case()
        if self._case is None or self._behind is not own.engine:
            await self.stop()
            url = await self._open.enter_async_context(served(own.engine._loaded.llm, "demo"))  # type: ignore[attr-defined]
            model = replace(
                demo_model(), engine=VLLM_SERVER, context_length=None, upstream=Upstream((url,), None, STEP)
            )
            engine = await asyncio.to_thread(make_engine, replace(model, engine_args={}))
            self._open.push_async_callback(engine.stop)
            await engine.start()
            self._behind, self._case = own.engine, replace(own, engine=engine)
        return self._case

    async def stop(self) -> None:
        await self._open.aclose()
        self._case = None


class SharedEngine:
    """The demo model's engine, which reads at most STEP tokens a step. It starts when it is asked for, and again if a
    test has killed it. It keeps statistics, as where a worker serves metrics."""

    def __init__(self) -> None:
        self._case: Case | None = None
        self.processes: set[int] = set()

    async def case(self) -> Case:
        from tokenizers import Tokenizer  # comes with vLLM

        if self._case is not None:
            with suppress(EngineDead):
                await self._case.engine.check()
                return self._case
        model = demo_model()
        args = {**model.engine_args, "max_num_batched_tokens": STEP, "max_num_seqs": STEP}
        model = with_statistics(replace(model, engine_args=args), Settings(metrics_port=9400))
        before = engine_processes(os.getpid())
        engine = await asyncio.to_thread(make_engine, model)
        await engine.start()
        self.processes = engine_processes(os.getpid()) - before
        tokenizer = Tokenizer.from_file(f"{model.path}/tokenizer.json")
        special = tuple(tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))

        def encode(text: str) -> list[int]:
            tokens: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return tokens

        self._case = Case(engine, "Count from 1 to 60.", encode, special, 32, model.chat_template_args)
        return self._case

    async def stop(self) -> None:
        if self._case is not None:
            await self._case.engine.stop()


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "year": {"type": "integer"}},
    "required": ["name", "year"],
    "additionalProperties": False,
}


async def rest(case: Case, prompt: Sequence[int], sampling: Sampling, committed: Sequence[int]) -> list[EngineDelta]:
    stream = case.engine.generate(EngineRequest(new_id(), prompt, sampling, committed=committed))
    async with aclosing(stream):
        return [delta async for delta in stream]


def tokens_of(deltas: Sequence[EngineDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def structured(case: Case, schema: Mapping[str, Any], **fields: Any) -> Sampling:
    spec = OutputSpec(text_format={"type": "json_schema", "schema": schema}, template_args=case.template_args)
    output_format = await case.engine.output_format(spec)
    return Sampling(structured=output_format.structured, **fields)


def tangled(choices: int, title: str = "") -> Any:
    """A small schema whose cost doubles with each choice: only the last condition says that no object is meant."""
    either: Any = {"anyOf": [{"minProperties": 1}, {"maxProperties": 9}]}
    return {"title": title, "allOf": [*([either] * choices), {"type": "string"}]}


def seeing(picture: Picture) -> list[dict[str, Any]]:
    url = data_url(draw(picture, 80, 80), "PNG")
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    return [{"role": "user", "content": parts}]
