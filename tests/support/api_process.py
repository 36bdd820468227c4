"""A process of the API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from app.local.ports import free_port
from tests.support.api import MODEL
from tests.support.celery_processes import ForkedProcess
from tests.support.scripted import models_of
from tests.support.waiting import until


class ApiProcess(ForkedProcess):
    """`longhaul api` as its own process."""

    def __init__(self, services: Any, home: Path, **env: str) -> None:
        self.port = free_port()
        models = home / "models.toml"
        models.write_text(models_of(MODEL))
        urls = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url}
        places = {"LONGHAUL_MODELS": str(models), "LONGHAUL_HOME": str(home), "LONGHAUL_PORT": str(self.port)}
        super().__init__(["api"], {**urls, **places, **env}, home / "api.txt")

    async def started(self, client: httpx.AsyncClient) -> None:
        async def alive() -> bool:
            assert self.is_running, self.text
            try:
                return (await client.get("/health/live")).status_code == 200
            except httpx.TransportError:
                return False

        await until(alive, what="the API process")

    async def ended(self) -> int:
        return await asyncio.to_thread(self.wait)
