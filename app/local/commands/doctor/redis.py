"""Redis: whether it lets this process in, and how; what it does when its memory is full; the rights of the user."""

from __future__ import annotations

from collections.abc import Iterator

from app.local.commands.doctor.finding import Finding, Findings, clock, fail, now, ok, warn
from app.local.commands.doctor.postgres import is_local
from app.local.errors import LocalError
from app.local.service_check import check_redis
from app.queue import redis_client
from app.queue.redis_client import RedisFacts, RedisTrouble
from config.settings import ConfigError, Settings

MAX_MEMORY_PART = 0.9


async def check(settings: Settings) -> Findings:
    try:
        url = settings.broker_url
        await check_redis(settings)
    except (ConfigError, LocalError) as error:
        return [fail("Redis", str(error), "set REDIS_URL; docs/operations.md, Services of your own")]
    try:
        before = now()
        facts = await redis_client.facts(url)
        after = now()
    except RedisTrouble as error:
        what = f"it does not answer: {error}"
        return [
            fail(
                "Redis",
                what,
                "start it, and let this machine reach it; password and rights: docs/operations.md, Rights",
            )
        ]
    version = ".".join(map(str, facts.version))
    found = [ok("Redis", f"{version}, answers in {1000 * facts.answer_seconds:.1f} ms")]
    return [*found, encryption(url), clock("Redis", facts.now, before, after), *memory(facts), kind(facts)]


def encryption(url: str) -> Finding:
    if is_local(url):
        return ok("TLS to Redis", "not needed: it is on this machine")
    if not url.startswith("rediss:"):
        return warn("TLS to Redis", "off: its password goes in the clear, and so do events", "use rediss://")
    return ok("TLS to Redis", "on, and the server proves its name")


def memory(facts: RedisFacts) -> Iterator[Finding]:
    name = "memory of Redis"
    if facts.max_memory and facts.policy != "noeviction":
        yield warn(
            name,
            f"full, it drops messages ({facts.policy}): they are sent again, seconds late",
            "set maxmemory-policy to noeviction",
        )
    elif facts.max_memory and facts.used_memory > MAX_MEMORY_PART * facts.max_memory:
        yield warn(name, f"{facts.used_memory} of {facts.max_memory} bytes are in use", "raise maxmemory")
    else:
        yield ok(name, facts.policy if facts.max_memory else f"no bound of its own ({facts.policy})")


def kind(facts: RedisFacts) -> Finding:
    if facts.is_cluster:
        return fail(
            "kind of Redis", "a cluster: scripts touch several keys", "use one server; docs/operations.md, Failover"
        )
    if facts.role != "master":
        return fail(
            "kind of Redis",
            f"it is a {facts.role}, which takes no writes",
            "name the primary, or a proxy that follows it",
        )
    return ok("kind of Redis", "one server that takes writes")
