"""What an attack is, what was observed while it ran, and how it is judged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from statistics import quantiles

from tests.attacks.memory import KEPT_BYTES, MIB, TYPICAL, Demand
from tests.attacks.target import Target

LATENCY_SECONDS = 1.0
ROUNDS = 3
"""How often an attack is repeated while memory stays behind: a leak grows each time, a high-water mark does not."""

FAILURE = re.compile(r"(?!501|503)5\d\d|failed server_error|timed out|held|nothing|smuggled")
"""Answers that no attack may get, whichever model is served."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One caller who means harm. `run` gets the target and how much of the attack to make: `full` or `small`."""

    name: str
    point: str
    """The point of the review of 2026-11 that it stands for, or what it is about."""
    run: Callable[[Target, int], Awaitable[None]]
    full: int
    small: int
    expected: Set[str]
    """The answers that both forms must get, each at least once, and no others. `Target` says how they are named."""
    full_only: Set[str] = frozenset()
    """The answers that only the full form gets, which then goes beyond a bound."""
    demand: Demand = TYPICAL
    limits: Mapping[str, int] | None = None
    """The attack runs in a project of its own with these limits; None: in the attacker's, which has none."""
    latency: float = LATENCY_SECONDS
    """The longest that the bystander's p99 may be, on a quiet machine."""
    seconds: float = 60.0
    """The attack is cut off after this time, which is no failure: it has done what it could."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the bystander. `started` is in seconds of the machine's monotonic clock."""

    started: float
    seconds: float
    status: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one role's processes: at the peak of an attack, and what each of its rounds left behind."""

    peak: int = 0
    kept: tuple[int, ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether each round left behind more than an allocator does, which keeps pieces of a large peak."""
        return bool(self.kept) and min(self.kept) > max(KEPT_BYTES, self.peak // 8)


@dataclass(frozen=True, slots=True)
class Observed:
    """What an attack did, against the time before it."""

    answers: Counter[str]
    asks: tuple[Ask, ...]
    api: Memory = Memory()
    worker: Memory = Memory()
    api_seconds: float = 0.0
    """CPU time of the API, the bystander's requests included."""
    leftovers: tuple[str, ...] = ()
    was_cut_off: bool = False

    @property
    def p50(self) -> float:
        return _percentile(self.asks, 50)

    @property
    def p99(self) -> float:
        return _percentile(self.asks, 99)


def judge(attack: Attack, observed: Observed, *, full: bool, any_model: bool = False) -> list[str]:
    """Returns what is wrong; an empty list if the attack was refused or harmless.

    `any_model`: the answers are not those of the scripted engine, so every answer but a failure will do.
    """
    return [
        *(
            [f"answered {answer!r}" for answer in observed.answers if FAILURE.match(answer)]
            if any_model
            else judge_answers(attack, observed.answers, full=full, was_cut_off=observed.was_cut_off)
        ),
        *judge_bystander(observed, attack.latency if full else None),
        *judge_memory("API", observed.api, attack.demand.api_bytes()),
        *judge_memory("worker", observed.worker, attack.demand.worker_bytes()),
        *observed.leftovers,
    ]


def judge_answers(attack: Attack, answers: Counter[str], *, full: bool, was_cut_off: bool = False) -> list[str]:
    """What the attack got and should not, and what it should have got, unless it had no time for it."""
    expected = attack.expected | attack.full_only if full else attack.expected
    found = [f"answered {answer!r}" for answer in sorted(set(answers) - expected)]
    missing = [] if was_cut_off else sorted(expected - set(answers))
    return found + [f"never answered {answer!r}" for answer in missing]


def judge_bystander(observed: Observed, latency: float | None) -> list[str]:
    """`latency` is the longest that the p99 may be; None: it is not judged."""
    bad = Counter(ask.status for ask in observed.asks if ask.status != "completed")
    found = [f"the bystander got {status} {count} times" for status, count in bad.items()]
    if not observed.asks:
        found.append("the bystander got no answer")
    if latency is not None and observed.p99 > latency:
        found.append(f"the bystander's p99 is {observed.p99:.1f} s")
    return found


def judge_memory(name: str, memory: Memory, bound: int) -> list[str]:
    found = []
    if memory.peak > bound:
        found.append(f"the {name} grew by {memory.peak // MIB} MiB (bound: {bound // MIB})")
    if len(memory.kept) == ROUNDS and memory.keeps:
        kept = ", ".join(str(size // MIB) for size in memory.kept)
        found.append(f"the {name} leaks: it kept {kept} MiB of {ROUNDS} rounds")
    return found


def _percentile(asks: tuple[Ask, ...], percent: int) -> float:
    times = [ask.seconds for ask in asks]
    return quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else sum(times)
