"""An operator at Flower, beside a complete Longhaul of real processes with the scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import text

from app.local.ports import free_port
from tests.faults.fleet import Fleet, running
from tests.faults.member import Role
from tests.faults.plan import Plan
from tests.support.celery_processes import ForkedProcess
from tests.support.forks import CELERY
from tests.support.waiting import PATIENCE_SECONDS, until

PLAN = Plan(apis=1, workers=1, maintenances=0, tokens_per_second=40.0)
AUTH = ("longhaul", "secret")


class FlowerClient:
    """Sends responses, and looks at them in Flower."""

    def __init__(self, fleet: Fleet, url: str, auth: tuple[str, str]) -> None:
        self.fleet = fleet
        self.url = url
        self.auth = auth
        self.http = httpx.AsyncClient(base_url=url, auth=auth, timeout=PATIENCE_SECONDS)

    async def send(self, prompt: str, **request: Any) -> str:
        body = {"model": "scripted", "input": prompt, "background": True, **request}
        answer = await self.fleet.http.post(f"{self.fleet.urls[0]}/v1/responses", json=body)
        response_id: str = answer.raise_for_status().json()["id"]
        return response_id

    async def task(self, response_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/api/task/info/{response_id}")
        task: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return task

    async def wait_for(self, response_id: str, **fields: Any) -> dict[str, Any]:
        """Waits until the task has these fields; `args` need only end so."""
        task: dict[str, Any] = {}

        async def has() -> bool:
            nonlocal task
            task = await self.task(response_id)
            ending = fields.get("args", "")
            rest = {name: value for name, value in fields.items() if name != "args"}
            return rest.items() <= task.items() and str(task.get("args", "")).endswith(ending)

        await until(has, what=lambda: f"{fields} in {task}")
        return task

    async def cancels(self, response_id: str) -> bool:
        return (await self.http.post(f"/api/task/revoke/{response_id}")).status_code == httpx.codes.OK

    async def rows(self, statement: str, **values: Any) -> list[Any]:
        return list(await self.fleet.db.execute(text(statement), values))

    async def status(self, response_id: str) -> str:
        (row,) = await self.rows("SELECT status FROM responses WHERE id = :id", id=response_id)
        return str(row.status)

    async def answers(self) -> bool:
        try:
            return (await self.http.get("/healthcheck")).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@asynccontextmanager
async def client_of(fleet: Fleet) -> AsyncIterator[FlowerClient]:
    """A client of the fleet's Flower."""
    (member,) = fleet.of(Role.FLOWER)
    env = psutil.Process(member.pid).environ()
    user, password = env["FLOWER_BASIC_AUTH"].split(":")
    flower = FlowerClient(fleet, f"http://127.0.0.1:{env['FLOWER_PORT']}", (user, password))
    async with flower.http:
        await until(flower.answers, what="Flower")
        yield flower


@asynccontextmanager
async def another_flower(fleet: Fleet, folder: Path, **env: str) -> AsyncIterator[FlowerClient]:
    """A client of one more Flower of the same deployment, with nothing in its memory."""
    port = free_port()
    given = psutil.Process(fleet.of(Role.FLOWER)[0].pid).environ()
    own = {"FLOWER_PORT": str(port), "FLOWER_BASIC_AUTH": ":".join(AUTH), "FLOWER_DB": str(folder / "flower.db")}
    _, _, _, *args = psutil.Process(fleet.of(Role.FLOWER)[0].pid).cmdline()  # after `python -m celery`
    process = ForkedProcess(args, {**given, **own, **env}, folder / "another-flower.log", CELERY)
    flower = FlowerClient(fleet, f"http://127.0.0.1:{port}", AUTH)
    try:
        async with flower.http:
            await until(flower.answers, what=lambda: process.text)
            yield flower
    finally:
        process.kill()


@asynccontextmanager
async def at_flower(**plan: int) -> AsyncIterator[FlowerClient]:
    """A client of a Flower whose fleet is its own."""
    async with running(replace(PLAN, **plan)) as fleet, client_of(fleet) as flower:
        yield flower
