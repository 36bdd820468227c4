"""DATABASE_URL at the start of a process: what nobody can connect with is said at once, and ends `longhaul migrate`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.local.errors import LocalError
from app.local.service_check import check_postgres
from app.store.database import Database, StoreBusy, StoreUnavailable
from app.store.migrate import wait_for_schema
from config.settings import ConfigError, load_settings
from tests.support.services import Services
from tests.support.waiting import until


def _with(url: str, **parts: str) -> str:
    return make_url(url).set(**parts).render_as_string(hide_password=False)


async def test_a_server_that_refuses_the_process_is_one_line_at_its_start(services: Services) -> None:
    for parts, said in (
        ({"password": "guessed"}, 'password authentication failed for user "longhaul_runtime"'),
        ({"username": "nobody_we_know"}, "nobody_we_know"),
        ({"database": "absent"}, 'database "absent"'),
    ):
        with pytest.raises(LocalError) as caught:
            await check_postgres(load_settings(DATABASE_URL=_with(services.database_url, **parts)))
        message = str(caught.value)
        assert message.startswith("DATABASE_URL: ") and said in message and "\n" not in message
        assert "guessed" not in message


async def test_a_value_that_the_driver_does_not_know_is_one_line_without_the_password() -> None:
    said = r"^DATABASE_URL: ClientConfigurationError: .*(must be one of|TLS version)"
    for parameter in ("sslmode=verify", "sslnegotiation=late", "ssl_min_protocol_version=SSLv3"):
        with pytest.raises(ConfigError, match=said) as caught:
            await check_postgres(load_settings(DATABASE_URL=f"postgresql://u:hunter2@127.0.0.1:1/x?{parameter}"))
        assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


async def test_a_certificate_that_nothing_can_verify_is_one_line_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    url = "postgresql://longhaul:secret@127.0.0.1:1/longhaul?sslmode=verify-full"
    with pytest.raises(ConfigError, match=r"^DATABASE_URL: no authority .*sslrootcert=FILE, or sslrootcert=system$"):
        await check_postgres(load_settings(DATABASE_URL=url))


async def test_a_process_that_runs_waits_for_its_password_and_says_why(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(_with(services.database_url, password="changing"), 1)
    with pytest.raises(StoreUnavailable, match="password authentication failed") as caught:
        await database.ping()
    assert not isinstance(caught.value, StoreBusy), "it is repeated without an end"
    waiting = asyncio.create_task(wait_for_schema(database))
    await until(lambda: "password authentication failed" in caplog.text)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await database.close()
