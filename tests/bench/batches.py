"""What a batch is worth: `python -m tests.bench batches`.

Each round measures, one right after the other: a batch, its requests as background POSTs, `vllm run-batch` with the
same file, and bare vLLM with the same prompts; streams alone, while a large batch begins, and with it behind them; and
how soon clients that wait for the end of a response learn of it. All are compared within their round. Each part can be
measured by itself.

The demo model shares its cores with all of Longhaul. So there is a second way: the scripted engine with the steps of a
GPU (`--step-ms`), where an engine that is never without work takes a time that is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx

from tests.bench import notices
from tests.bench.contenders.base import CannotStart, Contender
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import Served, scripted
from tests.bench.contenders.run_batch import ENDPOINT, batch_file
from tests.bench.load import Figures, Load, Mode, Time
from tests.bench.measurement import measure_load
from tests.bench.prompts import SCRIPT, SHORT
from tests.bench.results import Results
from tests.bench.rounds import keep_logs
from tests.support.waiting import until

NAME = "batches"
PACED = "batches-paced"
"""Results with the scripted engine."""
CONNECTIONS_BESIDE = 512
"""Beside those that wait, an eighth of which are kept for WebSockets."""
PATIENCE_SECONDS = 1800.0

Say = Callable[[str], None]


class Part(StrEnum):
    """What a round measures, in this order."""

    BATCH = "batch"
    """Beside vLLM, unless the engine is scripted."""
    POSTS = "posts"
    """The requests of the batch, which is measured, too."""
    STREAMS = "streams"
    POLLS = "polls"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one round is made of."""

    lines: int = 5000
    tokens: int = 64
    behind: int = 50_000
    """Lines of the batch behind the streams."""
    streams: int = 128
    stream_tokens: int = 8
    """Few, so that many streams fit into the beginning of a batch: only the first token is timed."""
    at_once: int = 4
    waiters: int = 5000
    rounds: int = 3
    concurrency: int = 256
    """Of the POSTs and of bare vLLM."""
    step: float | None = None
    """Seconds of a step of the scripted engine, which is measured in vLLM's place."""
    parts: Collection[Part] = tuple(Part)

    @property
    def settings(self) -> dict[str, str]:
        """Of the Longhaul that is measured."""
        return {"LONGHAUL_MAX_CONNECTIONS": str(2 * self.waiters + CONNECTIONS_BESIDE)}

    @property
    def prompt(self) -> str:
        return SHORT if self.step is None else SCRIPT

    def served(self, model: Path) -> Served:
        if self.step is None:
            return Served(path=str(model))
        return scripted(tokens_per_second=1 / self.step, max_num_seqs=self.concurrency)

    @property
    def body(self) -> dict[str, Any]:
        return {"max_output_tokens": self.tokens, "ignore_eos": True, "temperature": 0.0}

    def load(self, mode: Mode, concurrency: int, requests: int, **body: Any) -> Load:
        body = {**self.body, **body}
        return Load("", mode, concurrency, requests, body, self.prompt, realtime=False, patience=PATIENCE_SECONDS)


async def measure(
    say: Say, sizes: Sizes, results: Results, longhaul: Longhaul, others: Sequence[Contender] = ()
) -> None:
    """All rounds; a row of `results` for each, with the batch's ratio to each of the others."""
    contenders = [longhaul, *others]
    try:
        for contender in contenders:
            await contender.start()
            contender.freeze()
        for number in range(sizes.rounds):
            row = {"round": number + 1, **await _round(sizes, longhaul, others)}
            results.rows.append(row)
            results.save()
            say("  " + ", ".join(f"{key}: {value}" for key, value in row.items()))
    finally:
        for contender in contenders:
            await contender.stop()
        keep_logs(contenders, results.folder / "logs")


async def _round(sizes: Sizes, longhaul: Longhaul, others: Sequence[Contender]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    batch = 0.0
    longhaul.thaw()
    async with httpx.AsyncClient(base_url=longhaul.url, timeout=PATIENCE_SECONDS) as client:
        if Part.BATCH in sizes.parts or Part.POSTS in sizes.parts:
            batch = await _batch(client, sizes)
            row["batch tokens/s"] = f"{batch:,.0f}"
            if sizes.step is not None:
                row["of the engine"] = f"{batch / _full(sizes, sizes.step):.2f}"
        if Part.POSTS in sizes.parts:
            row["of POSTs"] = f"{batch / await _rate(longhaul, sizes, Mode.FIRE):.2f}"
        if Part.STREAMS in sizes.parts:
            row |= await _streams(client, sizes, longhaul)
        if Part.POLLS in sizes.parts:
            row |= await notices.measure(client, longhaul, sizes.waiters, sizes.prompt, sizes.body)
    longhaul.freeze()
    for other in others:
        other.thaw()
        row[f"of {other.name}"] = f"{batch / await _rate(other, sizes, *other.modes):.2f}"
        other.freeze()
    return row


def _full(sizes: Sizes, step: float) -> float:
    """Tokens a second of an engine that starts a line in the moment in which another one ends."""
    return sizes.lines / (math.ceil(sizes.lines / sizes.concurrency) * step)


async def _rate(contender: Contender, sizes: Sizes, mode: Mode) -> float:
    """Tokens a second of the batch's requests."""
    figures = await _figures(contender, sizes.load(mode, sizes.concurrency, sizes.lines))
    return figures.tokens / figures.seconds


async def _figures(contender: Contender, load: Load) -> Figures:
    figures = (await measure_load(contender, load)).figures
    if figures.errors:
        raise CannotStart(f"{contender.name}: {figures.errors} errors: {figures.complaints[0]}")
    return figures


async def _streams(client: httpx.AsyncClient, sizes: Sizes, longhaul: Longhaul) -> dict[str, Any]:
    """The first token of streams alone, while a batch is checked and its first lines begin, and with it behind them.

    Its lines have different lengths: those of one length would end in waves of all slots.
    """
    alone = await _first_tokens(sizes, longhaul)
    batch = await _created(client, sizes, sizes.behind, is_spread=True)
    beginning = await _first_tokens(sizes, longhaul)
    await until(lambda: _runs(client, batch), PATIENCE_SECONDS, "the batch behind runs")
    behind = await _first_tokens(sizes, longhaul)
    await client.post(f"/v1/batches/{batch}/cancel")
    await _ended(client, batch)
    return {
        "first token alone": f"{alone['p50']:.1f} ms (p95 {alone['p95']:.1f})",
        "while a batch begins": _compared(beginning, alone),
        "with a batch behind": _compared(behind, alone),
    }


async def _first_tokens(sizes: Sizes, longhaul: Longhaul) -> dict[str, float]:
    """Milliseconds by quantile."""
    load = sizes.load(Mode.STREAM, sizes.at_once, sizes.streams, max_output_tokens=sizes.stream_tokens)
    return (await _figures(longhaul, load)).times[Time.TTFT.value]


def _compared(found: dict[str, float], alone: dict[str, float]) -> str:
    """By the times of streams alone."""
    return f"{found['p50'] / alone['p50']:.2f} (p95 {found['p95'] / alone['p95']:.2f})"


# -- batches -----------------------------------------------------------------------------------------------------------


async def _batch(client: httpx.AsyncClient, sizes: Sizes) -> float:
    """Tokens a second of a batch, from its creation to its end."""
    begun = time.perf_counter()
    batch = await _ended(client, await _created(client, sizes, sizes.lines))
    if batch["request_counts"]["completed"] != sizes.lines:
        raise CannotStart(f"the batch is {batch['status']}: {batch['request_counts']}, {batch['errors']}")
    return float(batch["usage"]["output_tokens"]) / (time.perf_counter() - begun)


async def _created(client: httpx.AsyncClient, sizes: Sizes, lines: int, *, is_spread: bool = False) -> str:
    return await create(client, batch_file(sizes.load(Mode.FIRE, sizes.concurrency, lines), is_spread=is_spread))


async def create(client: httpx.AsyncClient, file: bytes) -> str:
    """Makes a batch of a file of `batch_file`; returns its id."""
    sent = {"file": ("batch.jsonl", file)}
    made = (await client.post("/v1/files", data={"purpose": "batch"}, files=sent)).raise_for_status().json()
    asked = {"input_file_id": made["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    batch_id: str = (await client.post("/v1/batches", json=asked)).raise_for_status().json()["id"]
    return batch_id


async def _ended(client: httpx.AsyncClient, batch_id: str) -> Any:
    while True:
        batch = (await client.get(f"/v1/batches/{batch_id}", params={"wait": 300})).raise_for_status().json()
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            return batch


async def _runs(client: httpx.AsyncClient, batch_id: str) -> bool:
    batch = (await client.get(f"/v1/batches/{batch_id}")).raise_for_status().json()
    return bool(batch["request_counts"]["completed"])
