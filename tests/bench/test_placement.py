"""The bench of placement at its smallest, and the cache that it computes with."""

from __future__ import annotations

import pytest

from tests.bench import placement
from tests.bench.placement import BLOCK, Cache, Load

pytestmark = pytest.mark.long


def test_a_cache_knows_whole_blocks_of_what_it_has_read() -> None:
    cache = Cache(10_000)
    assert cache.use("a", "system", 1_000, 1_505) == 0
    assert cache.use("a", "system", 1_000, 2_000) == 1_505 // BLOCK * BLOCK
    assert cache.use("b", "system", 1_000, 1_500) == 1_000 // BLOCK * BLOCK


def test_a_full_cache_forgets_what_was_used_longest_ago() -> None:
    cache = Cache(4_000)
    for agent in ("a", "b", "a", "c"):
        cache.use(agent, "system", 500, 1_500)
    assert dict(cache.read) == {"system": 500, "a": 1_500, "c": 1_500}


async def test_agents_find_more_of_their_context_with_affinity() -> None:
    found = await placement.measure(lambda _: None, Load(agents=16, turns=4, think_seconds=0.1, output_tokens=8))
    shares = [float(row["of the input from the cache"].rstrip("%")) for row in found.rows]
    assert shares[0] > shares[1]
