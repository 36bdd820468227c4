"""The engine's prefix cache is shared within a project, and with nobody else."""

from __future__ import annotations

from itertools import combinations

from app.responses.create.cache_salts import CacheSalts


async def a_key() -> bytes:
    return b"k" * 32


async def another_key() -> bytes:
    return b"l" * 32


async def test_the_default_project_keeps_the_salts_of_its_callers() -> None:
    salts = CacheSalts(a_key)
    assert await salts.salt("default", None) is None
    assert await salts.salt("default", "mine") == "mine"


async def test_no_two_projects_and_no_two_callers_salts_meet() -> None:
    sent = [("proj_a", None), ("proj_a", "x"), ("proj_a", "y"), ("proj_b", None), ("proj_b", "x"), ("proj_", "a\0x")]
    made = [await CacheSalts(a_key).salt(*each) for each in sent]
    made += [await CacheSalts(another_key).salt("proj_a", None)]
    assert all(one != other for one, other in combinations(made, 2))
    assert all(salt is not None and "proj" not in salt and len(salt) <= 1024 for salt in made)


async def test_a_project_s_requests_share_their_cache() -> None:
    first, second = [await CacheSalts(a_key).salt("proj_a", "x") for _ in range(2)]
    assert first == second
