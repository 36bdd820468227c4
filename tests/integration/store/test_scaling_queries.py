"""The queries by which operators watch the queue and deploy/ scales workers, on this version's schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from app.store.database import Database
from app.store.responses import logs
from tests.support.rows import Writer, claimed, queued

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "autoscaling.yaml").read_text(encoding="utf-8"))
SCALED: list[dict[str, Any]] = [found for found in MANIFESTS if found["kind"] == "ScaledObject"]
OLDEST, RUNNING = (
    re.sub(r"model\.[\w.-]+", "model.mine", trigger["metadata"]["query"]) for trigger in SCALED[0]["spec"]["triggers"]
)
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
(WAITING,) = re.findall(r"^```\n(SELECT queue, .*?);\n```$", OPERATIONS, re.MULTILINE | re.DOTALL)


async def _value(db: Database, query: str) -> Any:
    async with db.autocommit() as connection:
        return (await connection.execute(text(query))).scalar_one()


async def test_the_age_is_that_of_the_oldest_queued_response_of_the_model(db: Database) -> None:
    assert await _value(db, OLDEST) == 0
    await queued(db, model="other")
    assert await _value(db, OLDEST) == 0
    oldest = await queued(db, model="mine")
    await queued(db, model="mine")
    async with db.begin() as connection:
        await connection.execute(
            text("UPDATE responses SET created_at = created_at - interval '100 s' WHERE id = :id"), {"id": oldest}
        )
    assert 100 <= await _value(db, OLDEST) < 3600


async def test_a_response_runs_from_its_claim_to_its_end(db: Database) -> None:
    await queued(db, model="mine")
    assert await _value(db, RUNNING) == 0
    writer = Writer(await claimed(db, model="mine"))
    assert await _value(db, RUNNING) == 1
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.finish()])
    assert await _value(db, RUNNING) == 0


@pytest.mark.parametrize("query", [OLDEST, RUNNING, WAITING], ids=["oldest", "running", "waiting"])
async def test_no_query_reads_the_whole_table(db: Database, query: str) -> None:
    async with db.begin() as connection:
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join((await connection.execute(text(f"EXPLAIN {query}"))).scalars())
    assert "Index" in plan
    assert "Seq Scan" not in plan
