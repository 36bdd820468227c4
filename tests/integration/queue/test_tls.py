"""Redis with TLS (by a proxy): every client verifies the certificate, and says at the start what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from flower.utils.broker import Broker

from app.local import service_check
from app.local.service_check import check_postgres, check_redis
from app.queue.celery_app import make_celery
from app.queue.message import Message, Priority
from app.queue.publisher import TaskQueue
from app.streaming.pubsub import PubSub, PubSubUnavailable
from config.settings import ConfigError, Settings, load_settings
from tests.faults.proxy import HOST, Proxy
from tests.support.certificates import Authority
from tests.support.rows import a_key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def with_tls(redis_url: str, authority: Authority, address: str = HOST) -> AsyncIterator[str]:
    """The URL of Redis behind a certificate of `authority` for `address`."""
    url = urlsplit(redis_url)
    proxy = Proxy(partial(asyncio.open_connection, HOST, url.port), tls=authority.context(address))
    await proxy.start()
    try:
        yield f"rediss://:{url.password}@{HOST}:{proxy.port}/0"
    finally:
        await proxy.close()


async def publishes(settings: Settings) -> None:
    queue = TaskQueue(settings)
    try:
        await queue.enqueue(Message("resp_tls", "tls", "tls", Priority.FOREGROUND))
    finally:
        await queue.close()


async def receives(settings: Settings) -> None:
    pubsub = PubSub(settings.broker_url, a_key)
    await pubsub.start()
    try:
        await pubsub.ping()
        if not pubsub.connected:
            raise PubSubUnavailable
    finally:
        await pubsub.close()


async def celery_connects(settings: Settings) -> None:
    """As workers do, and the API for revokes."""

    def connect() -> None:
        with make_celery(settings).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            assert connection.default_channel.client.ping()

    await asyncio.to_thread(connect)


async def flower_looks(settings: Settings) -> None:
    conf = make_celery(settings).conf
    broker = Broker(conf.broker_url, broker_options=conf.broker_transport_options, broker_use_ssl=conf.broker_use_ssl)
    await broker.queues(["tls"])


CLIENTS = [publishes, receives, celery_connects, flower_looks]


@pytest.mark.parametrize("client", CLIENTS)
async def test_every_client_of_redis_trusts_the_authority_that_the_url_names(
    redis_url: str, authority: Authority, client: Callable[[Settings], Awaitable[None]]
) -> None:
    async with with_tls(redis_url, authority) as url:
        settings = load_settings(REDIS_URL=f"{url}?ssl_ca_certs={authority.file}")
        await check_redis(settings)
        await client(settings)


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_client_of_redis_trusts_an_unknown_authority_or_a_certificate_for_another_address(
    redis_url: str, authority: Authority, client: Callable[[Settings], Awaitable[None]]
) -> None:
    named = f"?ssl_ca_certs={authority.file}"
    for address, parameter in ((HOST, ""), ("127.0.0.2", named)):
        async with with_tls(redis_url, authority, address) as url:
            with pytest.raises(Exception) as caught:
                await client(load_settings(REDIS_URL=url + parameter))
            assert not isinstance(caught.value, AssertionError)


async def test_a_certificate_that_is_not_trusted_is_one_line_at_the_start(redis_url: str, authority: Authority) -> None:
    async with with_tls(redis_url, authority) as url:
        with pytest.raises(ConfigError) as caught:
            await check_redis(load_settings(REDIS_URL=url))
    assert str(caught.value) == (
        "REDIS_URL: the server's certificate is not trusted (unable to get local issuer certificate). "
        "Name the authority that signed it in the URL: ssl_ca_certs=FILE"
    )


async def test_a_file_of_a_url_that_is_missing_is_one_line_at_the_start() -> None:
    with pytest.raises(ConfigError, match="REDIS_URL: the file of its parameter ssl_ca_certs cannot be read"):
        await check_redis(load_settings(REDIS_URL="rediss://127.0.0.1:1/0?ssl_ca_certs=/missing.pem"))
    with pytest.raises(ConfigError, match="DATABASE_URL: the file of its parameter sslrootcert cannot be read"):
        await check_postgres(load_settings(DATABASE_URL="postgresql://127.0.0.1:1/x?sslrootcert=/missing.pem"))


async def test_a_service_that_is_too_old_is_one_line_at_the_start_and_one_that_is_away_is_none(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(DATABASE_URL=services.database_url, REDIS_URL=services.redis_url)
    away = load_settings(DATABASE_URL="postgresql://127.0.0.1:1/x", REDIS_URL="redis://127.0.0.1:1/0")
    for each in (settings, away, load_settings()):
        await check_postgres(each)
        await check_redis(each)
    monkeypatch.setattr(service_check, "_POSTGRES", replace(service_check._POSTGRES, oldest=(99,)))
    monkeypatch.setattr(service_check, "_REDIS", replace(service_check._REDIS, oldest=(99, 0)))
    with pytest.raises(ConfigError, match=r"DATABASE_URL: PostgreSQL [0-9.]+ is too old; Longhaul needs 99 or newer"):
        await check_postgres(settings)
    with pytest.raises(ConfigError, match=r"REDIS_URL: Redis [0-9.]+ is too old; Longhaul needs 99\.0 or newer"):
        await check_redis(settings)
