"""Postgres: whether it lets this process in, and how; its settings; the rights of the role; the schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import unquote, urlsplit

from app.local.commands.doctor.finding import Finding, Findings, clock, fail, now, ok, warn
from app.local.errors import LocalError
from app.local.service_check import check_postgres
from app.store.database import Database, StoreUnavailable
from app.store.migrate import head, is_supported, revision
from app.store.roles import inspection
from app.store.roles.inspection import RoleFacts, ServerFacts
from app.store.roles.rights import MONITOR, PROCESSES, wanted
from config.settings import ConfigError, Settings
from config.urls import parameters_of, postgres_servers

MAX_CONNECTIONS_PART = 0.8
"""The part of `max_connections` beyond which a restart of all processes may find too few."""
_SHOWN_RIGHTS = 4

Right = tuple[str, str, str | None]


async def check(settings: Settings, *, is_embedded: bool) -> Findings:
    """`is_embedded`: it is the one of `longhaul up`."""
    try:
        url = settings.database_dsn
        await check_postgres(settings)
    except ConfigError as error:
        return [fail("Postgres", str(error), "set DATABASE_URL; docs/operations.md, Services of your own")]
    except LocalError as error:
        return [fail("Postgres", str(error), "give the role its password and CONNECT; docs/operations.md, Rights")]
    db = Database(url, 2)
    try:
        return await _look(db, url, is_embedded=is_embedded)
    except StoreUnavailable as error:
        return [fail("Postgres", f"it does not answer: {error}", "start it, and let this machine reach it")]
    finally:
        await db.close()


async def _look(db: Database, url: str, *, is_embedded: bool) -> Findings:
    await db.ping()
    before = now()
    facts = await inspection.server(db)
    after = now()
    found = [ok("Postgres", f"{facts.version}, as {facts.role}; answers in {1000 * (after - before):.1f} ms")]
    found += [*encryption(url, facts), clock("Postgres", facts.now, before, after)]
    found += server_settings(facts, is_embedded=is_embedded)
    role = await inspection.role(db)
    if role is None:
        return [*found, fail("schema", "there is none", "run `longhaul migrate` with the owner's DATABASE_URL")]
    found += rights(facts, role)
    try:
        found += schema(await revision(db), is_supported=await is_supported(db))
    except StoreUnavailable as error:
        found.append(fail("schema", f"it cannot be read: {error}", "run `longhaul migrate` as the owner"))
    return found


async def check_monitor(settings: Settings) -> Findings:
    """The URL for the fleet's metrics, if there is one."""
    if settings.monitor_database_url is None:
        return []
    db, name = Database(settings.monitor_database_url, 1), "monitor's role"
    try:
        role = await inspection.role(db)
    except StoreUnavailable as error:
        return [fail(name, str(error), "mend LONGHAUL_MONITOR_DATABASE_URL, or leave it out")]
    finally:
        await db.close()
    if role is None or (missing := wanted(MONITOR) - role.held):
        lacks = "the schema" if role is None else _listed(missing)
        return [fail(name, f"it lacks {lacks}", f"name it {MONITOR}, and run `longhaul migrate` as the owner")]
    if more := role.held - wanted(MONITOR):
        return [warn(name, f"it may more than read metrics: {_listed(more)}", f"use the role {MONITOR}")]
    return [ok(name, "it reads the fleet's metrics, and no prompt")]


def encryption(url: str, facts: ServerFacts) -> Iterator[Finding]:
    """Whether others on the way could read along, or stand for the server."""
    name, parameters = "TLS to Postgres", parameters_of(url)
    if is_local(url):
        yield ok(name, "not needed: it is on this machine")
    elif not facts.is_encrypted and not postgres_servers(url).keeps_nothing:
        yield warn(name, "off: passwords and prompts go in the clear", "add sslmode=verify-full&sslrootcert=system")
    elif parameters.get("sslmode") == "verify-full" or postgres_servers(url).trusts_system:
        yield ok(name, "on, and the server proves its name")
    else:
        yield warn(name, "the server need not prove its name", "add sslmode=verify-full&sslrootcert=FILE, or =system")


def is_local(url: str) -> bool:
    """Whether a URL of Postgres or Redis names this machine alone: sockets, or a loopback address."""
    parts = urlsplit(url)
    hosts = [each for each in (parts.netloc.rpartition("@")[2] or "").split(",") if each]
    hosts = hosts or [unquote(each) for each in parameters_of(url).get("host", "").split(",")]
    return parts.scheme == "unix" or all(
        each.startswith(("/", "127.", "[::1]", "localhost")) or each == "" for each in hosts
    )


def server_settings(facts: ServerFacts, *, is_embedded: bool) -> Iterator[Finding]:
    settings, name = facts.settings, "commits"
    if settings["fsync"] != "on" or settings["full_page_writes"] != "on":
        yield fail(
            name,
            "a crash of the server's machine may lose or damage what was answered",
            "set fsync and full_page_writes to on",
        )
    elif settings["synchronous_commit"] == "off":
        yield fail(name, "synchronous_commit is off: a crash may take back what readers have seen", "set it to on")
    elif is_embedded:
        yield ok(name, "are on this machine's disk")
    elif not settings["synchronous_standby_names"]:
        yield warn(
            name,
            "wait for no standby: a failover may take back what readers have seen",
            "set synchronous_standby_names if there is a standby; docs/operations.md, Failover",
        )
    elif settings["synchronous_commit"] == "local":
        yield warn(name, "synchronous_commit is local: no commit waits for the standby", "set it to on or remote_write")
    else:
        yield ok(name, f"wait for {settings['synchronous_standby_names']}")
    allowed = int(settings["max_connections"]) - int(settings["superuser_reserved_connections"])
    used = f"{facts.connections} of {allowed} are in use"
    if facts.connections > MAX_CONNECTIONS_PART * allowed:
        yield warn("connections", used, "raise max_connections, lower LONGHAUL_DATABASE_POOL, or use PgBouncer")
    else:
        yield ok("connections", used)
    if settings["autovacuum"] != "on":
        yield warn("autovacuum", "it is off: tables grow, and plans get worse", "set autovacuum to on")
    limits = {each: settings.get(each, "0") for each in ("statement_timeout", "idle_session_timeout")}
    if found := [each for each, value in limits.items() if value != "0"]:
        yield warn("time-outs", f"the role has {' and '.join(found)}", "take them off the role: Longhaul sets its own")


def rights(facts: ServerFacts, role: RoleFacts) -> Iterator[Finding]:
    """Whether the role has what its processes need, and no more."""
    name, use = f"rights of {facts.role}", "use the roles of docs/operations.md, Rights"
    own = [each for each in role.roles if each in PROCESSES]
    needed = wanted(*own) if own else wanted(*PROCESSES)
    missing = needed - role.held - {each for each in needed if (*each[:2], None) in role.held}
    if facts.is_superuser:
        yield warn(name, "a superuser: whoever takes a process over has the whole server", use)
    elif role.is_owner:
        yield warn(name, "the owner of the schema: right for `longhaul migrate`, too much for processes", use)
    elif missing:
        yield fail(name, f"it lacks {_listed(missing)}", "run `longhaul migrate` as the owner, which grants them")
    elif more := {each for each in role.held if each not in needed}:
        yield warn(
            name,
            f"it may more than it needs: {_listed(more)}",
            "run `longhaul migrate` as the owner, or revoke what others granted",
        )
    elif len(own) > 1:
        yield warn(name, "it is one role for several kinds of process", use)
    else:
        yield ok(name, "what its processes need, and no more")


def _listed(rights: Collection[Right]) -> str:
    lines = sorted(f"{right} on {table}" + (f" ({column})" if column else "") for table, right, column in rights)
    more = f" and {len(lines) - _SHOWN_RIGHTS} more" if len(lines) > _SHOWN_RIGHTS else ""
    return ", ".join(lines[:_SHOWN_RIGHTS]) + more


def schema(found: str | None, *, is_supported: bool) -> Iterator[Finding]:
    wanted_revision = head()
    if is_supported:
        yield ok("schema", f"revision {found}" + ("" if found == wanted_revision else ", newer than this version"))
    elif found is not None and found > wanted_revision:
        yield fail("schema", f"revision {found} is too new for this version", "upgrade this machine's Longhaul")
    else:
        yield fail("schema", f"revision {found}, not {wanted_revision}", "run `longhaul migrate` as the owner")
