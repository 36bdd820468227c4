"""Every attack in its short form, on one installation: the answers, the bystander and the memory. Not the latencies.

Its name keeps it out of `make test`: it takes three minutes on a busy machine (86 passed in 174 s). Run it by
`python -m pytest tests/attacks/short_form.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.attack import Attack, judge
from tests.attacks.catalog import ATTACKS
from tests.attacks.run import Arena, arena, attack


@pytest.fixture(scope="module")
def running() -> Iterator[Arena]:
    with arena() as made:
        yield made


@pytest.mark.parametrize("each", ATTACKS, ids=lambda each: each.name)
async def test_an_attack_harms_nobody_else(running: Arena, each: Attack) -> None:
    assert judge(each, await attack(running, each, each.small), latency=False) == []
