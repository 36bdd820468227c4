"""Postgres and Valkey for one machine: embedded where no URL names one, and never touched where one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from app.local.children import Child, Program
from app.local.errors import LocalError
from app.local.home import Home
from app.local.postgres import Postgres
from app.local.service_account import Quarters
from app.local.supervisor import Say, Stopping, keep, unless
from app.local.valkey import Valkey
from config.settings import Settings

READY_SECONDS = 300.0
"""Postgres may have a crash to recover from; a server that ends is noticed at once."""
PAUSE = 0.05


class Service(Protocol):
    """A server of ours."""

    name: str
    variable: str
    """The environment variable that names one from outside, in place of ours."""

    @property
    def url(self) -> str: ...

    async def prepare(self) -> Program:
        """Before every start; raises LocalError."""

    async def ready(self) -> bool:
        """Whether the started server answers."""

    async def recover(self, failures: int) -> bool:
        """Whether a first start that failed `failures` times is worth another try."""


async def launch(service: Service) -> Child:
    """Starts a server and waits until it answers. Raises LocalError with its last line; then nothing is left of it."""
    child = await Child.start(await service.prepare(), lambda _: None)
    ended = asyncio.create_task(child.wait())
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not ended.done():
                if await service.ready():
                    return child
                await asyncio.wait({ended}, timeout=PAUSE)
        raise LocalError(f"{service.name} did not start: {child.last_line or f'status {ended.result()}'}")
    except BaseException as error:
        await child.stopped()
        if isinstance(error, TimeoutError):
            raise LocalError(f"{service.name} did not answer within {READY_SECONDS:g} seconds") from None
        raise
    finally:
        ended.cancel()


async def launch_first(service: Service) -> Child:
    """`launch`, with what the service knows to do against a failure."""
    failures = 0
    while True:
        try:
            return await launch(service)
        except LocalError:
            failures += 1
            if not await service.recover(failures):
                raise


@asynccontextmanager
async def running(service: Service, stopping: Stopping, say: Say) -> AsyncIterator[None]:
    """The service, started again whenever it dies, until the block ends; `stopping` is set where it cannot live."""
    child = await unless(stopping, launch_first(service))
    done = Stopping()
    keeper = asyncio.create_task(
        keep(lambda: launch(service), done, lambda line: say(f"{service.name} {line}"), first=child)
    )
    keeper.add_done_callback(lambda _: stopping.set())
    try:
        yield
    finally:
        done.set()
        broken = await keeper
        if broken is not None:
            stopping.failed(f"{service.name} {broken}")


@asynccontextmanager
async def embedded(
    settings: Settings, home: Home, lock: int, stopping: Stopping, say: Say
) -> AsyncIterator[dict[str, str]]:
    """Both services for the length of the block; yields DATABASE_URL and REDIS_URL."""
    named = {"DATABASE_URL": settings.database_url, "REDIS_URL": settings.redis_url}
    urls = {name: url for name, url in named.items() if url is not None}
    async with AsyncExitStack() as stack:
        if len(urls) < len(named):
            quarters = Quarters.of(home)
            if quarters.folder != home.path:
                say(
                    f"data of Postgres and Valkey are in {quarters.folder} (their user cannot enter {home.path.parent})"
                )
            for service in (Postgres(quarters, (lock,)), Valkey(quarters, (lock,))):
                if service.variable not in urls:
                    await stack.enter_async_context(running(service, stopping, say))
                    urls[service.variable] = service.url
                    say(f"{service.name} runs ({service.variable} is not set)")
        yield urls
