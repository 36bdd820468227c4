"""What the contract tests (`test_contract.py`) must know of each engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from config.model_files import resolved
from config.models import ServedModel, load_models
from tests.engine.processes import engine_processes
from tests.support.scripted import SCRIPTED
from workers.engine import make_engine
from workers.engine.base import Engine, EngineDead, EngineDelta, Message, Sampling

MODELS = Path(__file__).parents[2] / "config" / "models.toml"

COUNTED = ", ".join(str(number) for number in range(1, 61)) + "."
MANY_SCRIPTS = "你好，世界！ Γειά σου, Κόσμε! 👋🌍🚂 — très à la carte, señor"  # noqa: RUF001

STEP = 64
"""Tokens of a prompt that `Stepping` reads in one step."""

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
        return self.engine.generate(request_id or new_id(), prompt, sampling or GREEDY)

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


class Stepping:
    """An engine that reads STEP tokens a step. It starts when it is asked for, and again if a test has killed it."""

    def __init__(self, case: Case, **engine_args: Any) -> None:
        self._case = case
        self._args = {"max_num_batched_tokens": STEP, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**26, **engine_args}
        self._engine: Engine | None = None
        self.processes: set[int] = set()

    async def case(self) -> Case:
        if self._engine is not None:
            with suppress(EngineDead):
                await self._engine.check()
                return replace(self._case, engine=self._engine)
        model = demo_model()
        model = replace(model, engine_args={**model.engine_args, **self._args})
        before = engine_processes(os.getpid())
        self._engine = await asyncio.to_thread(make_engine, model)
        await self._engine.start()
        self.processes = engine_processes(os.getpid()) - before
        return replace(self._case, engine=self._engine)

    async def stop(self) -> None:
        if self._engine is not None:
            await self._engine.stop()
