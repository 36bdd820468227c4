"""A gauge that is not what the rows say is noticed."""

from __future__ import annotations

from typing import cast

import pytest

from tests.faults.gauges import Facts, find_differences
from tests.faults.member import Member, Role
from tests.faults.plan import LEASE_SECONDS
from tests.support.scrapes import Scrape

pytestmark = pytest.mark.long

FACTS = Facts({("default", "background", "waiting"): 2}, {"p": 2}, 1, (("a@host", 4, 3), ("b@host", 4, 0)))
OLDEST = 5.0
FLEET = f"""
longhaul_fleet_up 1
longhaul_fleet_responses{{model="m",tier="default",mode="background",state="waiting"}} 2
longhaul_fleet_responses{{model="m",tier="default",mode="background",state="running"}} 0
longhaul_fleet_waiting_by_project{{project="p"}} 2
longhaul_fleet_suspects{{model="m"}} 1
longhaul_fleet_workers{{model="m",state="ready"}} 2
longhaul_fleet_slots{{model="m"}} 8
longhaul_fleet_paused{{model="m",scope="model"}} 0
longhaul_fleet_lease_seconds{{model="m"}} {LEASE_SECONDS}
longhaul_fleet_oldest_queued_seconds{{model="m",tier="default",mode="background"}} {OLDEST + 0.1}
"""
WORKER = """
longhaul_worker_info{model="m",worker="a@host",version="1"} 1
longhaul_worker_slots{model="m"} 4
longhaul_worker_running_responses{model="m"} 3
longhaul_worker_generating_responses{model="m"} 2
longhaul_worker_waiting_responses{model="m"} 1
"""
API = """
longhaul_bound_held{bound="connections"} 7
longhaul_bound_held{bound="readers"} 0
longhaul_bound_held_bytes{bound="bodies"} 0
"""


class Shown:
    """A process, for what is compared."""

    name = "it"

    def __init__(self, role: Role) -> None:
        self.role = role


def differences(role: Role, text: str) -> list[str]:
    scrapes = {cast(Member, Shown(role)): Scrape.of_all([text])}
    return list(find_differences(FACTS, OLDEST, scrapes))


@pytest.mark.parametrize(
    ("role", "text"),
    [(Role.MAINTENANCE, FLEET), (Role.WORKER, WORKER), (Role.API, API)],
    ids=lambda each: str(each)[:20],
)
def test_each_gauge_that_is_off_by_a_little_is_noticed(role: Role, text: str) -> None:
    assert differences(role, text) == []
    for line in text.split("\n")[1:-1]:
        sample, value = line.rsplit(" ", 1)
        if 'bound="connections"' in sample or "worker_info" in sample:
            continue
        off = text.replace(line, f"{sample} {float(value) + 3}")
        assert differences(role, off) != [], sample


def test_a_worker_that_postgres_does_not_know_is_noticed() -> None:
    assert differences(Role.WORKER, WORKER.replace("a@host", "c@host")) != []
