"""Our own path alone: API, queue, worker, journal, pub/sub and SSE, on an engine that costs nothing.

The scripted engine either keeps to a rate (what a fast GPU would ask of us: does it arrive, and at what price?) or
has none, or too much of one, and then the path itself is the limit: for events, or for tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import Served, scripted
from tests.bench.load import Mode
from tests.bench.plan import SCRIPT, Cell, Plan
from tests.bench.targets import TOO_FAST, UNBOUND

TOO_MUCH = 3
"""Times the rate."""


@dataclass(frozen=True, slots=True)
class Sizes:
    streams: int = 512
    rate: float = 40.0
    """Tokens per second of each stream."""
    seconds: float = 8.0
    """How long each stream lasts at that rate."""
    tokens: int = 500
    """Tokens of each stream without a rate."""
    tokens_per_delta: int = 1
    rounds: int = 3

    def runs(self) -> list[tuple[Plan, Served, Mapping[str, str]]]:
        """One with the rate, one without, one with too much of it, and their settings.

        The client has no priority: no engine busy-waits here.
        """
        paced = scripted(tokens_per_second=self.rate, tokens_per_delta=self.tokens_per_delta, max_num_seqs=4096)
        too_much = scripted(tokens_per_second=TOO_MUCH * self.rate, max_num_seqs=4096)
        tokens = max(1, round(self.rate * self.seconds))
        unbound = scripted(tokens_per_delta=self.tokens_per_delta, max_num_seqs=4096)
        label = f"{self.streams} x {self.rate:g}/s"
        return [
            (self._plan(label, tokens), paced, {}),
            (self._plan(UNBOUND, self.tokens), unbound, {"LONGHAUL_EVENTS_PER_SECOND": "0"}),
            (self._plan(TOO_FAST, tokens * TOO_MUCH), too_much, {}),
        ]

    def _plan(self, label: str, tokens: int) -> Plan:
        cell = Cell(Mode.STREAM, self.streams, SCRIPT, label)
        return Plan((cell,), self.rounds, length=0.25, tokens=tokens, realtime=False)


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
