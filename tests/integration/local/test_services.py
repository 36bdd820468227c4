"""The embedded Postgres and Valkey, as tests and `longhaul up` use them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from app.local.errors import LocalError
from app.local.home import Home
from app.local.services.postgres import OWNER, PASSWORD_FILE, Postgres
from app.local.services.service_account import KEPT_VARIABLES, ServiceFolders
from app.store.roles.rights import ROLES
from tests.support.services import PostgresForTests, Services


async def fetch(services: Services, query: str) -> object:
    connection = await asyncpg.connect(services.owner_url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def arguments(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def socket_folder(services: Services) -> Path:
    return Path(parse_qs(urlsplit(services.database_url).query)["host"][0])


async def test_postgres_keeps_what_was_committed_when_killed(services: Services) -> None:
    await fetch(services, "CREATE TABLE kept (n int)")
    await fetch(services, "INSERT INTO kept VALUES (7)")
    before = services.database_url
    services.postgres.kill()
    services.postgres.start()
    assert services.database_url == before
    assert await fetch(services, "SELECT n FROM kept") == 7
    await fetch(services, "DROP TABLE kept")


async def test_postgres_is_durable_and_listens_on_no_port(services: Services) -> None:
    assert await fetch(services, "SHOW fsync") == "on"
    assert await fetch(services, "SHOW listen_addresses") == ""
    assert await fetch(services, "SHOW server_encoding") == "UTF8"


async def test_postgres_lets_in_its_roles_with_their_passwords_and_no_superuser(services: Services) -> None:
    url, sockets = urlsplit(services.database_url), str(socket_folder(services))
    assert urlsplit(services.owner_url).password != url.password
    # The owner of the tests may make roles, which tests of the rights need.
    superusers = "SELECT count(*) FROM pg_roles WHERE rolsuper AND rolcanlogin AND rolname <> 'longhaul'"
    assert await fetch(services, superusers) == 0
    passwords = {urlsplit(services.url_of(role)).password for role in (OWNER, *ROLES)}
    assert len(passwords) == 1 + len(ROLES)
    assert url.password not in arguments(services.postgres.pids[0])
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(host=sockets, user=url.username, password="guessed", database="longhaul")
    for user in ("longhaul", "postgres"):
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="no pg_hba"):
            await asyncpg.connect(host=sockets, user=user, password=url.password, database="longhaul")


def test_the_password_of_postgres_is_the_starting_user_s_alone(services: Services) -> None:
    status = (services.folder / "home" / PASSWORD_FILE).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_services_get_no_variable_of_the_environment_that_they_do_not_need(services: Services, server: str) -> None:
    environment = Path(f"/proc/{getattr(services, server).pids[0]}/environ").read_text()
    names = {line.partition("=")[0] for line in environment.split("\0") if line}
    assert names - {"PG_GRANDPARENT_PID"} <= {*KEPT_VARIABLES, "LC_ALL"}


def test_the_socket_is_in_a_closed_folder(services: Services) -> None:
    assert stat.S_IMODE(socket_folder(services).stat().st_mode) == 0o700


def test_postgres_starts_if_another_process_has_its_old_process_id(services: Services) -> None:
    """After a power loss another process may have the process id in postmaster.pid."""
    data = next(services.folder.glob("home/postgres-*/data"))
    services.postgres.kill()
    file = data / "postmaster.pid"
    assert file.exists(), "a killed server leaves its file"
    victim = services.valkey.pids[0]
    lines = file.read_text().split("\n")
    file.write_text("\n".join([str(victim), *lines[1:]]))
    lock = socket_folder(services) / ".s.PGSQL.5432.lock"
    lock.write_text(f"{victim}\n" + "\n".join(lines[1:]))
    services.postgres.start()
    assert services.postgres.running


async def test_valkey_requires_its_password_which_is_in_no_argument(services: Services) -> None:
    url = urlsplit(services.redis_url)
    assert url.hostname == "127.0.0.1"
    assert url.password
    assert url.password not in arguments(services.valkey.pids[0])
    async with Redis(host=url.hostname, port=url.port or 0, retry=Retry(NoBackoff(), 0)) as stranger:
        with pytest.raises(Exception, match=r"[Aa]uthenticat"):
            await stranger.ping()


@pytest.fixture(scope="module")
def own_services() -> Iterator[Services]:
    """For tests that change its files: those of the session would have another address then."""
    running = Services()
    yield running
    running.close()


async def test_a_data_folder_that_lets_in_others_is_refused(own_services: Services) -> None:
    home = own_services.folder / "home"
    file = next(home.glob("postgres-*/data")) / "pg_hba.conf"
    own_services.postgres.stop()
    before = file.read_text()
    file.write_text("local all all trust\n")
    with pytest.raises(LocalError, match=r"data of a version before 0\.3 cannot be used, so move .* away"):
        await Postgres(ServiceFolders.choose(Home.prepare(home))).prepare()
    assert file.read_text() == "local all all trust\n"
    file.write_text(before)
    own_services.heal()


async def test_lost_passwords_are_written_again(own_services: Services) -> None:
    file = own_services.folder / "home" / PASSWORD_FILE
    own_services.postgres.stop()
    file.write_text("")
    own_services.postgres.start()
    urls = [own_services.url_of(role) for role in PostgresForTests.roles]
    assert file.read_text().split() == [urlsplit(url).password for url in urls]
    assert await fetch(own_services, "SELECT 1") == 1
