"""What the doctor makes of what it finds, without services."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.local.commands.doctor import machine, postgres, redis
from app.local.commands.doctor.finding import Finding, Level, clock
from app.queue.redis_client import RedisFacts
from app.store.migrate import head
from app.store.roles.inspection import RoleFacts, ServerFacts
from app.store.roles.rights import API, PROCESSES, wanted
from config.settings import load_settings

SETTINGS = {
    "synchronous_commit": "on",
    "synchronous_standby_names": "ANY 1 (*)",
    "fsync": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "superuser_reserved_connections": "3",
    "autovacuum": "on",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
}


def facts(**changes: Any) -> ServerFacts:
    settings = {**SETTINGS, **{name: value for name, value in changes.items() if name in SETTINGS}}
    others = {name: value for name, value in changes.items() if name not in SETTINGS}
    return replace(ServerFacts("17.2", 0.0, API, False, True, 10, settings), **others)


def levels(found: Iterable[Finding]) -> dict[str, str]:
    return {each.check: each.level.value for each in found}


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({}, "commits", "ok"),
        ({"synchronous_standby_names": ""}, "commits", "warn"),
        ({"synchronous_commit": "local"}, "commits", "warn"),
        ({"synchronous_commit": "off"}, "commits", "fail"),
        ({"fsync": "off"}, "commits", "fail"),
        ({"full_page_writes": "off"}, "commits", "fail"),
        ({"connections": 190}, "connections", "warn"),
        ({"autovacuum": "off"}, "autovacuum", "warn"),
        ({"statement_timeout": "1000"}, "time-outs", "warn"),
    ],
)
def test_settings_of_postgres_that_cost_answers_are_told(changes: dict[str, Any], check: str, level: str) -> None:
    assert levels(postgres.server_settings(facts(**changes), is_embedded=False))[check] == level


def test_the_embedded_postgres_needs_no_standby() -> None:
    found = levels(postgres.server_settings(facts(synchronous_standby_names=""), is_embedded=True))
    assert found["commits"] == "ok"


@pytest.mark.parametrize(
    ("url", "is_encrypted", "level"),
    [
        ("postgresql://a@/x?host=/run", False, "ok"),
        ("postgresql://a@127.0.0.1:5432/x", False, "ok"),
        ("postgresql://a@db:5432/x", False, "warn"),
        ("postgresql://a@localhost:1,db:2/x", False, "warn"),
        ("postgresql://a@db/x?sslmode=require", True, "warn"),
        ("postgresql://a@db/x?sslmode=verify-full&sslrootcert=/ca.pem", True, "ok"),
        ("postgresql://a@db/x?sslrootcert=system", True, "ok"),
    ],
)
def test_a_way_to_postgres_on_which_others_could_read_is_told(url: str, is_encrypted: bool, level: str) -> None:
    found = levels(postgres.encryption(url, facts(is_encrypted=is_encrypted)))
    assert found == {"TLS to Postgres": level}


def test_a_role_is_held_against_what_its_processes_need() -> None:
    held = frozenset(wanted(API))
    name = f"rights of {API}"
    all_of = RoleFacts(False, PROCESSES, frozenset(wanted(*PROCESSES)))
    assert levels(postgres.rights(facts(), RoleFacts(False, [API], held)))[name] == "ok"
    assert levels(postgres.rights(facts(), all_of))[name] == "warn", "one role for all"
    assert levels(postgres.rights(facts(is_superuser=True), RoleFacts(True, PROCESSES, held)))[name] == "warn"
    assert levels(postgres.rights(facts(), RoleFacts(True, [], held)))[name] == "warn"
    lacking = RoleFacts(False, [API], held - {("chunks", "INSERT", None)})
    [finding] = postgres.rights(facts(), lacking)
    assert (finding.level, finding.found) == (Level.FAIL, "it lacks INSERT on chunks")
    more = held | {("chunks", right, None) for right in ("UPDATE", "DELETE", "TRUNCATE", "TRIGGER", "REFERENCES")}
    [finding] = postgres.rights(facts(), RoleFacts(False, [API], more))
    assert finding.level is Level.WARN and finding.found.endswith(" and 1 more")


def test_a_schema_of_another_version_is_told() -> None:
    assert levels(postgres.schema(head(), is_supported=True)) == {"schema": "ok"}
    [old] = postgres.schema(None, is_supported=False)
    [new] = postgres.schema("9999", is_supported=False)
    assert old.level is new.level is Level.FAIL
    assert "migrate" in old.to_do and "upgrade" in new.to_do


@pytest.mark.parametrize(("theirs", "level"), [(100.0, "ok"), (101.5, "ok"), (90.0, "warn"), (120.0, "warn")])
def test_a_clock_that_is_off_is_told(theirs: float, level: str) -> None:
    found = clock("Postgres", theirs, 100.0, 100.1)
    assert found.level.value == level
    if level == "warn":
        assert ("behind" in found.found) == (theirs < 100)


def redis_facts(**changes: Any) -> RedisFacts:
    return replace(RedisFacts((8, 1), 0.0, 0.001, "master", False, 10, 0, "noeviction"), **changes)


def test_a_redis_that_drops_is_full_is_a_cluster_or_a_replica_is_told() -> None:
    assert levels(redis.memory(redis_facts())) == {"memory of Redis": "ok"}
    assert levels(redis.memory(redis_facts(max_memory=100, policy="allkeys-lru"))) == {"memory of Redis": "warn"}
    assert levels(redis.memory(redis_facts(max_memory=100, used_memory=95))) == {"memory of Redis": "warn"}
    assert redis.kind(redis_facts()).level is Level.OK
    assert redis.kind(redis_facts(is_cluster=True)).level is redis.kind(redis_facts(role="slave")).level is Level.FAIL
    assert redis.encryption("redis://a:6379/0").level is Level.WARN
    assert redis.encryption("rediss://a:6379/0").level is redis.encryption("unix:///run/x").level is Level.OK


def test_what_this_machine_lacks_is_told(tmp_path: Path) -> None:
    settings = load_settings(max_connections=4096)
    assert levels(machine.open_files(settings, 1024)) == {"open files": "warn"}
    assert levels(machine.open_files(settings, resource.RLIM_INFINITY)) == {"open files": "ok"}
    assert levels(machine.disk(tmp_path / "not" / "yet")).keys() == {"disk"}


def test_an_api_that_strangers_could_use_and_unknown_variables_are_told() -> None:
    assert levels(machine.settings_of(load_settings(host="0.0.0.0"), {})) == {"settings": "fail"}
    assert levels(machine.settings_of(load_settings(), {"LONGHAUL_PROT": "1"})) == {"settings": "warn"}
    assert levels(machine.settings_of(load_settings(), {})) == {"settings": "ok"}
