"""All attacks, in the order in which they run."""

from __future__ import annotations

from tests.attacks import bodies, connections, operators, prompts, storms, tenants
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *connections.ATTACKS,
    *bodies.ATTACKS,
    *prompts.ATTACKS,
    *storms.ATTACKS,
    *tenants.ATTACKS,
    *operators.ATTACKS,
)
