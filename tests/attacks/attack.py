"""What an attack is, what was observed while it ran, and how it is judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from config.settings import Settings
from tests.attacks.target import Target

KIB, MIB = 2**10, 2**20
LATENCY_SECONDS = 1.0
ROUNDS = 3
"""How often an attack is repeated while memory stays behind: a leak grows each time, a high-water mark does not."""

CONNECTION_BYTES = 896 * KIB
READER_BYTES = 768 * KIB
PARSED_BODIES = 2
JSON_FACTOR = 37
"""How much larger the objects of the worst JSON are than its text."""
PROMPT_FACTOR = 150
"""The same for a prompt that is being built, measured with 8 MB."""
CONTEXT_FACTOR = 10
"""The same for the items of a context, at worst."""
SMALL_PROMPTS_BYTES = 2 * 10**6
KEPT_BYTES = 16 * MIB
"""What may stay behind an attack each time: the allocator and the interpreter keep some for themselves."""
OTHER_KEPT_BYTES = 64 * MIB
"""The same of processes other than API and worker: a session of Postgres is new now and then, and has its caches."""
WALL_BYTES = 400 * MIB
"""What a process may grow by, whatever one tenant does to another."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What an attack makes the server hold at most, in terms of docs/operations.md ("Memory")."""

    connections: int = 16
    readers: int = 16
    large: bool = False
    """Whether its bodies, its answers or its prompts are larger than 256 KiB."""
    contexts: bool = False
    """Whether its responses continue more than 256 KiB."""
    is_walled: bool = False
    """Whether WALL_BYTES is all that a process may grow by."""

    def api_bytes(self) -> int:
        """What the API may grow by."""
        if self.is_walled:
            return WALL_BYTES
        settings = Settings()
        held = self.connections * CONNECTION_BYTES + self.readers * READER_BYTES + KEPT_BYTES
        if self.large:
            held += 3 * settings.buffer_bytes + PARSED_BODIES * JSON_FACTOR * settings.max_body_bytes
        return held

    def worker_bytes(self) -> int:
        """What a worker may grow by."""
        if self.is_walled:
            return WALL_BYTES
        settings = Settings()
        held, prompts = KEPT_BYTES, SMALL_PROMPTS_BYTES
        if self.large:
            prompts += settings.max_body_bytes
            held += self.connections * settings.max_body_bytes
        if self.contexts:
            held += CONTEXT_FACTOR * settings.max_context_bytes
        return held + prompts * PROMPT_FACTOR


TYPICAL = Demand()
Run = Callable[[Target, int], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One caller who means harm. `run` gets the target and how much of the attack to make: `full` or `small`."""

    name: str
    about: str
    run: Run
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
    seconds: float = 60.0
    """The attack is cut off after this time, which is no failure: it has done what it could."""


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
        return bool(self.kept) and all(kept > max(self.least, self.peak // 8) for kept in self.kept)


@dataclass(frozen=True, slots=True)
class Observed:
    """What an attack did, against the time before it. `memory` is by role."""

    answers: Counter[str]
    asks: tuple[Ask, ...]
    alone: Mapping[str, float] = field(default_factory=dict)
    """The p99 of the bystander's requests of each kind while nobody attacked."""
    memory: Mapping[str, Memory] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()
    was_cut_off: bool = False


def p99s(asks: Iterable[Ask]) -> dict[str, float]:
    """The p99 of the requests of each kind."""
    times: dict[str, list[float]] = defaultdict(list)
    for ask in asks:
        times[ask.kind].append(ask.seconds)
    return {
        kind: quantiles(each, n=100, method="inclusive")[98] if len(each) > 1 else each[0]
        for kind, each in times.items()
    }


def judge(attack: Attack, observed: Observed, *, full: bool) -> list[str]:
    """Returns what is wrong; an empty list if the attack was refused or harmless."""
    return [
        *judge_answers(attack, observed.answers, full=full, was_cut_off=observed.was_cut_off),
        *judge_bystander(observed),
        *(judge_latency(attack, observed) if full else ()),
        *judge_memory(attack.demand, observed.memory),
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
    return found if observed.asks else ["the bystander got no answer"]


def judge_latency(attack: Attack, observed: Observed) -> list[str]:
    """What took the bystander too long."""
    bounds = {kind: max(attack.latency, 2 * observed.alone.get(kind, 0.0)) for kind in p99s(observed.asks)}
    return [
        f"the bystander's p99 of {kind} is {seconds:.1f} s (bound: {bounds[kind]:.1f})"
        for kind, seconds in p99s(observed.asks).items()
        if seconds > bounds[kind]
    ]


def judge_memory(demand: Demand, memory: Mapping[str, Memory]) -> list[str]:
    """What grew beyond its bound, and what grew with each round."""
    bounds = {"api": demand.api_bytes(), "worker": demand.worker_bytes(), "other": WALL_BYTES}
    found = []
    for role, each in memory.items():
        if each.peak > bounds[role]:
            found.append(f"{role} grew by {each.peak // MIB} MiB (bound: {bounds[role] // MIB})")
        if len(each.kept) == ROUNDS and each.keeps:
            found.append(f"{role} leaks: it kept {', '.join(str(size // MIB) for size in each.kept)} MiB")
    return found
