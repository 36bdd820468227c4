"""The setup of a scale measurement: one Longhaul on the scripted engine, and helpers to load and inspect it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import scripted
from tests.bench.load import Load
from tests.bench.measurement import Measured, measure_load
from tests.bench.plan import Name
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.svg import lines

Row = dict[str, Any]
MIB = 1 << 20
PATIENCE = 3600.0


class MeasurementFailed(Exception):
    """The server refused a request of the measurement."""


@dataclass(frozen=True, slots=True)
class Setup:
    folder: Path
    variant: Variant

    @asynccontextmanager
    async def longhaul(
        self, *, context_length: int = 32768, settings: Mapping[str, str] | None = None, **engine: Any
    ) -> AsyncIterator[Longhaul]:
        """Started; `engine` are the scripted engine's arguments."""
        variant = replace(self.variant, settings={**(settings or {}), **self.variant.settings})
        engine = {"max_num_seqs": 4096, **engine}
        made = Longhaul(Name.LONGHAUL, self.folder, scripted(context_length, **engine), variant)
        try:
            await made.start()
            yield made
        finally:
            await made.stop()


async def put(longhaul: Longhaul, load: Load) -> Measured:
    """Raises MeasurementFailed where anything was refused."""
    measured = await measure_load(longhaul, replace(load, realtime=False, patience=PATIENCE))
    if measured.figures.errors:
        raise MeasurementFailed(f"{measured.figures.errors} errors: {measured.figures.complaints[0]}")
    return measured


def body(tokens: int, **more: Any) -> dict[str, Any]:
    """Of a request that gets exactly so many tokens."""
    return {"max_output_tokens": tokens, "ignore_eos": True, **more}


async def post(longhaul: Longhaul, **fields: Any) -> dict[str, Any]:
    """One request, whose answer is JSON."""
    async with httpx.AsyncClient(base_url=longhaul.url, timeout=PATIENCE, verify=False) as http:
        answer = await http.post("/v1/responses", json={"model": "bench", "input": SCRIPT, **fields})
    if answer.status_code != httpx.codes.OK:
        raise MeasurementFailed(f"{answer.status_code}: {answer.text[:300]}")
    made: dict[str, Any] = answer.json()
    return made


async def scalar(longhaul: Longhaul, statement: str, **values: Any) -> Any:
    """What one SQL statement finds."""
    async with longhaul.db.autocommit() as connection:
        return (await connection.execute(text(statement), values)).scalar_one_or_none()


async def when(check: Callable[[], Awaitable[bool]], pause: float = 0.1) -> None:
    """Returns once it is so."""
    while not await check():  # noqa: ASYNC110 - what is waited for is in another process
        await asyncio.sleep(pause)


def per_thousand(measured: Measured, count: int) -> Row:
    """CPU seconds by role for each 1,000 of `count`."""
    return {f"{role} CPU s": round(1000 * seconds / count, 4) for role, seconds in measured.cpu.items() if count}


def mebibytes(longhaul: Longhaul) -> Row:
    """Memory by role."""
    return {f"{role} MiB": round(size / MIB, 1) for role, size in longhaul.memory().items()}


def row_text(row: Row) -> str:
    """One line of progress."""
    values = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())


def curves(
    results: Results, title: str, x: str, y: str, columns: Mapping[str, str], *, logarithmic: bool = False
) -> str:
    """`columns` (name -> legend) over the column `x`."""
    series = {legend: points(results, x, column) for column, legend in columns.items()}
    return lines(title, x, y, series, logarithmic=logarithmic)


def points(results: Results, x: str, column: str) -> list[tuple[float, float]]:
    return [(row[x], row[column]) for row in results.rows if column in row]
