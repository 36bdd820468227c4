"""What an attack is, what was observed while it ran, and how it is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import quantiles

from tests.attacks.target import Target

REFUSED = frozenset(
    {"400", "401", "403", "404", "405", "408", "409", "411", "413", "414", "415", "421", "429", "431", "501", "503"}
    | {"closed"}
)
"""How a server refuses: by a status that tells the caller why, or by closing the connection."""
HARMLESS = REFUSED | {"200", "200 failed", "204", "held"}
"""Or it serves. `200 failed` is a response that ends as failed; `held` is a connection that waits for its peer."""

MIB = 2**20
API_GROWTH = 512 * MIB
"""Bytes that an attack may add to the API's memory at its peak, with the default settings.

docs/operations.md allows about 1.3 GiB for buffers and parsing; no single attack needs as much.
"""
WORKER_GROWTH = 768 * MIB
"""The same of a worker: the largest context takes about ten times its 64 MiB while its prompt is prepared."""
LATENCY_SECONDS = 1.0
"""The longest that the bystander's p99 may be, on a quiet machine."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One caller who means harm. `run` gets the target and how much of the attack to make: `full` or `small`."""

    name: str
    point: str
    """The point of the review of 2026-11 that it stands for, or what it is about."""
    run: Callable[[Target, int], Awaitable[None]]
    full: int
    small: int
    expected: frozenset[str] = REFUSED
    seconds: float = 60.0
    """The attack is cut off after this time, which is no failure: it has done what it could."""
    api_growth: int = API_GROWTH
    worker_growth: int = WORKER_GROWTH


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the bystander. `started` is in seconds of the machine's monotonic clock."""

    started: float
    seconds: float
    status: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What an attack did. Growth is in bytes, at the peak, against the time before the attack."""

    answers: Counter[str]
    asks: tuple[Ask, ...]
    api_growth: int
    worker_growth: int
    leftovers: tuple[str, ...] = ()

    @property
    def p50(self) -> float:
        return _percentile(self.asks, 50)

    @property
    def p99(self) -> float:
        return _percentile(self.asks, 99)


def judge(attack: Attack, observed: Observed, *, latency: bool) -> list[str]:
    """Returns what is wrong; an empty list if the attack was refused or harmless."""
    found = [f"answered {answer}" for answer in sorted(set(observed.answers) - attack.expected)]
    if not observed.answers:
        found.append("nothing was tried")
    bad = Counter(ask.status for ask in observed.asks if ask.status != "completed")
    found += [f"the bystander got {status} {count} times" for status, count in bad.items()]
    if not observed.asks:
        found.append("the bystander got no answer")
    if latency and observed.p99 > LATENCY_SECONDS:
        found.append(f"the bystander's p99 is {observed.p99:.1f} s")
    for name, growth, bound in (
        ("API", observed.api_growth, attack.api_growth),
        ("worker", observed.worker_growth, attack.worker_growth),
    ):
        if growth > bound:
            found.append(f"the {name} grew by {growth // MIB} MiB (bound: {bound // MIB})")
    return [*found, *observed.leftovers]


def _percentile(asks: tuple[Ask, ...], percent: int) -> float:
    times = [ask.seconds for ask in asks]
    return quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else sum(times)
