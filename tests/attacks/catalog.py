"""All attacks, in the order in which they run."""

from __future__ import annotations

from tests.attacks import bodies, connections, prompts, storms
from tests.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (*connections.ATTACKS, *bodies.ATTACKS, *prompts.ATTACKS, *storms.ATTACKS)
