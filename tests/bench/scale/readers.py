"""Readers of one response: what each further one costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import httpx
import orjson

from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import NAME
from tests.bench.load import Load, Mode, Time
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.scale.setup import MeasurementFailed, Row, Setup, body, curves, mebibytes, per_thousand, put

SAYS = "1 to 1,000 readers of one response of 50 tokens a second"
SIZES = (1, 10, 100, 300, 1000)
RATE = 50
SECONDS = 10


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul(tokens_per_second=float(RATE)) as longhaul:
        for size in sizes:
            response_id = await _streaming(longhaul)
            path = f"/v1/responses/{response_id}?stream=true"
            measured = await put(longhaul, Load("", Mode.READ, size, size, paths=[path]))
            figures = measured.figures
            yield {
                "readers": size,
                "events": figures.events,
                "events/s": round(figures.events / figures.seconds, 1),
                "seconds": round(figures.seconds, 2),
                "gap p95 ms": figures.times[Time.GAP]["p95"],
                **per_thousand(measured, figures.events),
                **mebibytes(longhaul),
            }


async def _streaming(longhaul: Longhaul) -> str:
    """The id of a background response that runs and can be read."""
    request = {"model": NAME, "input": SCRIPT, "background": True, "stream": True, **body(RATE * SECONDS)}
    async with (
        httpx.AsyncClient(base_url=longhaul.url, timeout=60, verify=False) as http,
        http.stream("POST", "/v1/responses", json=request) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                return str(orjson.loads(line.removeprefix("data: "))["response"]["id"])
    raise MeasurementFailed("the stream had no event")


def plots(results: Results) -> dict[str, str]:
    title = "CPU seconds per 1,000 events that readers got"
    costs = {"api CPU s": "API", "worker CPU s": "worker", "postgres CPU s": "Postgres"}
    return {"scale-readers": curves(results, title, "readers", "CPU s", costs, logarithmic=True)}
