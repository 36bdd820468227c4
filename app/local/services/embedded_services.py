"""Postgres and Valkey for one machine: embedded if no URL names them; services of others are never touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from app.local.children import Child, Program
from app.local.errors import LocalError
from app.local.home import Home
from app.local.restarts import Log, StopRequest, Supervised, run_unless_stopped, supervise
from app.local.services.postgres import Postgres
from app.local.services.service_account import ServiceFolders
from app.local.services.valkey import Valkey
from config.settings import Settings

READY_SECONDS = 300.0
"""Long, because Postgres may have to recover from a crash. A server that ends is noticed at once."""
POLL_SECONDS = 0.05


class Service(Protocol):
    """An embedded server."""

    name: str
    variable: str
    """The environment variable that names another server to use in its place."""

    @property
    def url(self) -> str: ...

    async def prepare(self) -> Program:
        """Prepares every start; returns the program. Raises LocalError."""

    async def ready(self) -> bool:
        """Whether the server answers."""

    async def recover(self, failures: int) -> bool:
        """Repairs what it can after the first start failed `failures` times; returns whether to try it once more."""


async def launch(service: Service) -> Child:
    """Starts a server, and waits until it answers. Raises LocalError with its last line; then the server is stopped."""
    child = await Child.start(await service.prepare(), lambda _: None)
    ended = asyncio.create_task(child.wait())
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not ended.done():
                if await service.ready():
                    return child
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
        raise LocalError(f"{service.name} did not start: {child.last_line or f'status {ended.result()}'}")
    except BaseException as error:
        await child.stop_and_wait()
        if isinstance(error, TimeoutError):
            raise LocalError(f"{service.name} did not answer within {READY_SECONDS:g} seconds") from None
        raise
    finally:
        ended.cancel()


async def launch_first(service: Service) -> Child:
    """Like `launch`, but the service may repair a failure and try again."""
    failures = 0
    while True:
        try:
            return await launch(service)
        except LocalError:
            failures += 1
            if not await service.recover(failures):
                raise


async def launch_all(services: Sequence[Service]) -> list[Child]:
    """Launches the services side by side, in their order. If one fails, the others are stopped. Raises LocalError."""
    tasks = [asyncio.create_task(launch_first(service)) for service in services]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Child):
                await result.stop_and_wait()
        raise


@asynccontextmanager
async def kept(service: Service, child: Child, stopping: StopRequest, log: Log) -> AsyncIterator[None]:
    """Keeps the service running until the block ends: restarts it if it dies."""
    done = StopRequest()
    program = Supervised(lambda: launch(service), lambda line: log(f"{service.name} {line}"))
    supervision = asyncio.create_task(supervise(program, done, first=child))
    supervision.add_done_callback(lambda _: stopping.set())
    try:
        yield
    finally:
        done.set()
        await supervision


@dataclass(frozen=True, slots=True)
class Urls:
    """DATABASE_URL and REDIS_URL for every process, and what those of a command of `longhaul` get instead."""

    processes: dict[str, str]
    of_command: dict[str, dict[str, str]]


@asynccontextmanager
async def embedded(settings: Settings, home: Home, lock: int, stopping: StopRequest, log: Log) -> AsyncIterator[Urls]:
    """Runs the services that no URL names until the block ends; yields the URLs of all."""
    named = {"DATABASE_URL": settings.database_url, "REDIS_URL": settings.redis_url}
    urls = {name: url for name, url in named.items() if url is not None}
    of_command: dict[str, dict[str, str]] = {}
    async with AsyncExitStack() as stack:
        if len(urls) < len(named):
            folders = ServiceFolders.choose(home)
            if folders.account:
                log(f"Postgres and Valkey run as the user {folders.account.name!r}")
            if folders.folder != home.path:
                log(f"data of Postgres and Valkey are in {folders.folder} (their user cannot enter {home.path.parent})")
            postgres = Postgres(folders, (lock,))
            every: tuple[Service, ...] = (postgres, Valkey(folders, (lock,)))
            services = [service for service in every if service.variable not in urls]
            children = await run_unless_stopped(stopping, launch_all(services))
            for service, child in zip(services, children, strict=True):
                await stack.enter_async_context(kept(service, child, stopping, log))
                urls[service.variable] = service.url
                log(f"{service.name} runs ({service.variable} is not set)")
            if postgres in services:
                of_command = postgres.variables
        yield Urls(urls, of_command)
