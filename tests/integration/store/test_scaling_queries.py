"""The queries by which operators watch the queue and deploy/ scales workers, on this version's schema."""

from __future__ import annotations

import re
from typing import Any

import yaml
from sqlalchemy import text

from app.store.database import Database
from app.store.responses import logs
from config.process import CHECKOUT
from tests.integration.store.common import begun, scalar, sql
from tests.support.rows import queued

MANIFESTS = yaml.safe_load_all((CHECKOUT / "deploy" / "kubernetes" / "autoscaling.yaml").read_text(encoding="utf-8"))
SCALED: list[dict[str, Any]] = [found for found in MANIFESTS if found["kind"] == "ScaledObject"]
OLDEST, RUNNING = (
    re.sub(r"model\.[\w.-]+", "model.mine", trigger["metadata"]["query"]) for trigger in SCALED[0]["spec"]["triggers"]
)
OPERATIONS = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
(WAITING,) = re.findall(r"^```\n(SELECT queue, .*?);\n```$", OPERATIONS, re.MULTILINE | re.DOTALL)


async def test_the_age_is_that_of_the_oldest_queued_response_of_the_model(db: Database) -> None:
    assert await scalar(db, OLDEST) == 0
    await queued(db, model="other")
    assert await scalar(db, OLDEST) == 0
    oldest = await queued(db, model="mine")
    await queued(db, model="mine")
    await sql(db, "UPDATE responses SET created_at = created_at - interval '100 s' WHERE id = :id", id=oldest)
    assert 100 <= await scalar(db, OLDEST) < 3600


async def test_a_response_runs_from_its_claim_to_its_end(db: Database) -> None:
    await queued(db, model="mine")
    assert await scalar(db, RUNNING) == 0
    writer = await begun(db, model="mine")
    assert await scalar(db, RUNNING) == 1
    await logs.append(db, [writer.finish()])
    assert await scalar(db, RUNNING) == 0


async def test_a_model_is_never_idle_between_the_insert_of_a_response_and_its_end(db: Database) -> None:
    """A worker that loads is left alone, also where another died with the response."""

    async def is_idle() -> bool:
        return await scalar(db, OLDEST) == await scalar(db, RUNNING) == 0

    assert await is_idle()
    waiting = await queued(db, model="mine")
    assert not await is_idle()
    await sql(db, "DELETE FROM responses WHERE id = :id", id=waiting)
    writer = await begun(db, model="mine")
    for change in ("worker = worker", "worker = NULL, sent_at = NULL", "sent_at = now()"):
        await sql(db, f"UPDATE responses SET {change}")
        assert not await is_idle(), change
    await sql(db, "DELETE FROM responses WHERE id = :id", id=writer.row.id)
    assert await is_idle()


async def test_no_query_reads_the_whole_table(db: Database) -> None:
    for query in (OLDEST, RUNNING, WAITING):
        async with db.begin() as connection:
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
            plan = "\n".join((await connection.execute(text(f"EXPLAIN {query}"))).scalars())
        assert "Index" in plan and "Seq Scan" not in plan, query
