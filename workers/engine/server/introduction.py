"""What a vLLM server is, as it says or shows: asked for at the start, and whenever it is back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from config.models import ServedModel
from workers.engine.base import EngineAway, EngineError, RequestAborted
from workers.engine.server.client import Client, Unfit
from workers.engine.server.frames import ErrorFrame

_PROBE_TOKENS = (11, 7)
"""No model begins with these two by itself behind the probe's prompt. If one did, its server would pass for one that
runs our logits processor: the next continuation would find other tokens than it forced, and fail."""
_PROBE_PROMPT = [7]
PROBE_SECONDS = 60.0
"""How long a server may take to say what it is, and to generate two tokens, behind whatever waits there."""
_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_MOST = 2.0**53
"""A number larger than any count of a server."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    """Name of the model there."""
    context_length: int
    adapters: frozenset[str]
    version: str
    can_force: bool
    """Whether it runs our logits processor."""
    by_priority: bool
    cache_tokens: int | None

    def lines(self, own_version: str, processor: str) -> list[str]:
        """What operators should know at load. `processor`: how a server gets our logits processor."""
        found = []
        if not self.can_force:
            found.append(
                "runs without Longhaul's logits processor, so requests with a seed, penalties, min_tokens or a grammar "
                f"cannot continue after a crash: they fail. Start the server with {processor}"
            )
        if not self.by_priority:
            found.append("does not schedule by priority (--scheduling-policy priority): requests wait there in order")
        if self.version != own_version:
            found.append(f"is vLLM {self.version}, and prompts are made by this worker's {own_version}")
        return found


NOBODY = Server("", 0, frozenset(), "", can_force=False, by_priority=False, cache_tokens=None)


@dataclass(frozen=True, slots=True)
class Load:
    """The server's load, from all its clients."""

    running: int = 0
    waiting: int = 0
    cache_tokens: int | None = None


async def introduce(
    client: Client, model: ServedModel, extra_args: Callable[[Sequence[int], int], dict[str, Any]]
) -> Server:
    """`extra_args`: those that force tokens behind a prompt of this length.

    Raises EngineAway; Unfit if the server cannot serve the model, or its pages are none of vLLM's.
    """
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await _introduce(client, model, extra_args(_PROBE_TOKENS, len(_PROBE_PROMPT)))
    except TimeoutError:
        raise EngineAway("it generates nothing") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unfit(f"its /v1/models is none of vLLM's ({type(error).__name__})") from None


async def _introduce(client: Client, model: ServedModel, forcing: dict[str, Any]) -> Server:
    listed = [each for each in orjson.loads(await client.get("/v1/models"))["data"] if each["id"]]
    bases = [each for each in listed if not each.get("parent")]
    chosen = next((each for each in bases if each["id"] == model.name), bases[0] if len(bases) == 1 else None)
    if chosen is None:
        names = ", ".join(str(each["id"]) for each in bases) or "none"
        raise Unfit(f"it does not serve {model.name!r} (it has {names})")
    adapters = frozenset(each["id"] for each in listed if each.get("parent"))
    for adapter in model.adapters:
        if adapter.name not in adapters:
            raise Unfit(f"it does not serve the adapter {adapter.name!r}")
    load = await read_load(client)
    version = await _version(client)
    tokens = await _probe(client, chosen["id"], forcing, priority=1)
    by_priority = tokens is not None
    if not by_priority:
        tokens = await _probe(client, chosen["id"], forcing, priority=0)
    length = int(chosen.get("max_model_len") or 0)
    if length < 1:
        raise Unfit("it does not say its max_model_len")
    can_force = tokens == list(_PROBE_TOKENS)
    return Server(chosen["id"], length, adapters, version, can_force, by_priority, load.cache_tokens)


async def read_load(client: Client) -> Load:
    """Nothing, where metrics are not shown."""
    try:
        return load_of((await client.get("/metrics")).decode(errors="replace"))
    except Unfit:
        return Load()


def load_of(metrics: str) -> Load:
    """Reads the load from Prometheus' text. Samples that are no amounts (`NaN`, `+Inf`) are left out."""
    running = waiting = cache = 0.0
    for name, labels, value in _SAMPLE.findall(metrics):
        if name == "vllm:num_requests_running":
            running += _amount(value)
        elif name == "vllm:num_requests_waiting":
            waiting += _amount(value)
        elif name == "vllm:cache_config_info":
            about = dict(_LABEL.findall(labels))
            cache += _amount(about.get("block_size", "")) * _amount(about.get("num_gpu_blocks", ""))
    return Load(int(running), int(waiting), int(cache) or None)


def _amount(value: str) -> float:
    try:
        amount = float(value)
    except ValueError:
        return 0.0
    return amount if 0.0 <= amount <= _MOST else 0.0


async def _version(client: Client) -> str:
    try:
        return str(orjson.loads(await client.get("/version"))["version"])
    except (Unfit, ValueError, KeyError, TypeError):
        return "of an unknown version"


async def _probe(client: Client, name: str, forcing: dict[str, Any], *, priority: int) -> list[int] | None:
    """The tokens that come; None if the server refuses the request, as one does that has no priorities."""
    params = {"extra_args": forcing, "temperature": 0.0, "max_tokens": len(_PROBE_TOKENS), "ignore_eos": True}
    body = {"model": name, "token_ids": _PROBE_PROMPT, "sampling_params": params, "stream": True, "priority": priority}
    tokens: list[int] = []
    try:
        async with aclosing(client.generate(body, {})) as pieces:
            async for piece in pieces:
                tokens += piece.token_ids
    except EngineError:
        return None
    except RequestAborted as error:
        raise EngineAway(str(error)) from None
    except ErrorFrame as error:
        if error.code >= 500:
            raise EngineAway(str(error)) from None
        return None
    return tokens
