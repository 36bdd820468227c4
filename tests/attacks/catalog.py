"""All attacks, in the order in which they run."""

from __future__ import annotations

from tests.attacks import backlogs, bodies, connections, grammars, operators, prompts, storms, tenants, walls
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *connections.ATTACKS,
    *bodies.ATTACKS,
    *prompts.ATTACKS,
    *storms.ATTACKS,
    *tenants.ATTACKS,
    *walls.ATTACKS,
    *grammars.ATTACKS,
    *backlogs.ATTACKS,
    *operators.ATTACKS,
)
