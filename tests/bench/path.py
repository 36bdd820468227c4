"""Our own path alone: API, queue, worker, journal, pub/sub and SSE, on an engine that costs nothing.

The scripted engine either keeps to a rate (what a fast GPU would ask of us: does it arrive, and at what price?) or
has none, or too much of one, and then the path itself is the limit: for events, or for tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import Served, scripted
from tests.bench.load import Mode
from tests.bench.plan import SCRIPT, Cell, Plan
from tests.bench.targets import TOO_FAST, UNBOUND

STREAMS = 512
RATE = 40.0
"""Tokens per second of each stream."""
SECONDS = 8
"""How long each stream lasts at that rate."""
TOKENS = 500
"""Tokens of each stream without a rate."""
TOO_MUCH = 3
"""Times the rate."""
ROUNDS = 3


def runs() -> list[tuple[Plan, Served, Mapping[str, str]]]:
    """One with the rate, one without, one with too much of it, and their settings."""
    tokens = round(RATE * SECONDS)
    paced, too_much = (scripted(tokens_per_second=rate, max_num_seqs=4096) for rate in (RATE, TOO_MUCH * RATE))
    return [
        (_plan(f"{STREAMS} x {RATE:g}/s", tokens), paced, {}),
        (_plan(UNBOUND, TOKENS), scripted(max_num_seqs=4096), {"LONGHAUL_EVENTS_PER_SECOND": "0"}),
        (_plan(TOO_FAST, tokens * TOO_MUCH), too_much, {}),
    ]


def _plan(label: str, tokens: int) -> Plan:
    """Its client has no priority: no engine busy-waits here."""
    cell = Cell(Mode.STREAM, STREAMS, SCRIPT, label)
    return Plan((cell,), ROUNDS, length=0.25, tokens=tokens, realtime=False)


def contenders(
    folder: Path, served: Served, variants: Mapping[str, Variant], settings: Mapping[str, str] = MappingProxyType({})
) -> list[Longhaul]:
    """Longhaul and its variants, in folders of their own; a variant's settings go before these."""
    found = []
    for name, variant in variants.items():
        place = folder / name
        place.mkdir(parents=True)
        found.append(Longhaul(name, place, served, replace(variant, settings={**settings, **variant.settings})))
    return found
