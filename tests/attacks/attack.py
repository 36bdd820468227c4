"""What an attack is, what was observed while it ran, and how it is judged."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from tests.attacks.memory import KEPT_BYTES, MIB, TYPICAL, WALL_BYTES, Demand, is_kept
from tests.attacks.target import Target

LATENCY_SECONDS = 1.0
FIRST_TOKEN = "first-token"
"""The kind of requests whose time is that until a stream's first token."""
ROUNDS = 3
"""How often an attack is repeated while memory stays behind: a leak grows each time, a high-water mark does not."""

FAILURE = re.compile(r"(?!501|503)5\d\d|failed server_error|timed out|held|nothing|smuggled")
"""Answers that no attack may get, whichever model is served."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One caller who means harm. `run` gets the target and how much of the attack to make: `full` or `small`."""

    name: str
    about: str
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
    """The longest that the bystander's p99 may be, on a quiet machine, or twice what it is alone, if that is more."""
    first_token: float | None = None
    """How much later than alone the first token of the bystander's streams may come, as a p99; None: not judged."""
    seconds: float = 60.0
    """The attack is cut off after this time, which is no failure: it has done what it could."""


Run = Callable[[Target, int], Awaitable[None]]
ATTACKS: list[Attack] = []
"""All attacks, in the order in which they run."""


def attack(about: str, full: int, small: int, expected: Set[str], **more: Any) -> Callable[[Run], Run]:
    """Adds the function to ATTACKS under its own name; `more` are fields of `Attack`."""

    def add(run: Run) -> Run:
        ATTACKS.append(Attack(run.__name__.replace("_", "-"), about, run, full, small, expected, **more))
        return run

    return add


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the bystander. `started` is in seconds of the machine's monotonic clock."""

    started: float
    seconds: float
    status: str
    kind: str = "post"
    """What it asked for: `Bystander` has the kinds."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one role's processes: at the peak of an attack, and what each of its rounds left behind."""

    peak: int = 0
    kept: tuple[int, ...] = ()
    least: int = KEPT_BYTES
    """What is little, whatever the peak was."""

    @property
    def keeps(self) -> bool:
        """Whether each round left behind more than an allocator does, which keeps pieces of a large peak."""
        return bool(self.kept) and all(is_kept(kept, self.peak, self.least) for kept in self.kept)


@dataclass(frozen=True, slots=True)
class Observed:
    """What an attack did, against the time before it."""

    answers: Counter[str]
    asks: tuple[Ask, ...]
    alone: Mapping[str, float] = field(default_factory=dict)
    """The p99 of the bystander's requests of each kind while nobody attacked."""
    api: Memory = Memory()
    worker: Memory = Memory()
    other: Memory = Memory()
    """Of the one other process that grew most."""
    api_seconds: float = 0.0
    """CPU time of the API, the bystander's requests included."""
    leftovers: tuple[str, ...] = ()
    was_cut_off: bool = False

    @property
    def p50(self) -> float:
        return _percentile([ask.seconds for ask in self.asks], 50)

    @property
    def slowest(self) -> tuple[str, float]:
        """The kind of requests with the longest p99, and that."""
        return max(p99s(self.asks).items(), key=lambda each: each[1], default=("none", 0.0))


def p99s(asks: Iterable[Ask]) -> dict[str, float]:
    """The p99 of the requests of each kind."""
    times: dict[str, list[float]] = defaultdict(list)
    for ask in asks:
        times[ask.kind].append(ask.seconds)
    return {kind: _percentile(each, 99) for kind, each in times.items()}


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
        *judge_bystander(observed),
        *(judge_latency(attack, observed) if full else ()),
        *judge_memory("API", observed.api, attack.demand.api_bytes()),
        *judge_memory("worker", observed.worker, attack.demand.worker_bytes()),
        *judge_memory("other process", observed.other, WALL_BYTES),
        *observed.leftovers,
    ]


def judge_answers(attack: Attack, answers: Counter[str], *, full: bool, was_cut_off: bool = False) -> list[str]:
    """What the attack got and should not, and what it should have got, unless it had no time for it."""
    expected = attack.expected | attack.full_only if full else attack.expected
    found = [f"answered {answer!r}" for answer in sorted(set(answers) - expected)]
    missing = [] if was_cut_off else sorted(expected - set(answers))
    return found + [f"never answered {answer!r}" for answer in missing]


def judge_bystander(observed: Observed) -> list[str]:
    bad = Counter((ask.kind, ask.status) for ask in observed.asks if ask.status != "completed")
    found = [f"the bystander's {kind} got {status} {count} times" for (kind, status), count in bad.items()]
    if not observed.asks:
        found.append("the bystander got no answer")
    return found


def judge_latency(attack: Attack, observed: Observed) -> list[str]:
    """What took the bystander too long."""
    found = []
    for kind, seconds in p99s(observed.asks).items():
        alone = observed.alone.get(kind, 0.0)
        bound = max(attack.latency, 2 * alone)
        if kind == FIRST_TOKEN and attack.first_token is not None:
            bound = min(bound, alone + attack.first_token)
        if seconds > bound:
            found.append(f"the bystander's p99 of {kind} is {seconds:.1f} s (bound: {bound:.1f})")
    return found


def judge_memory(name: str, memory: Memory, bound: int) -> list[str]:
    found = []
    if memory.peak > bound:
        found.append(f"the {name} grew by {memory.peak // MIB} MiB (bound: {bound // MIB})")
    if len(memory.kept) == ROUNDS and memory.keeps:
        kept = ", ".join(str(size // MIB) for size in memory.kept)
        found.append(f"the {name} leaks: it kept {kept} MiB of {ROUNDS} rounds")
    return found


def _percentile(times: list[float], percent: int) -> float:
    return quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else sum(times)
