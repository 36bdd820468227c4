"""Runs attacks against one installation: one after the other, or side by side."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.attacks.attack import ROUNDS, Attack, Memory, Observed, p99s
from tests.attacks.bystander import Bystander, standing_by
from tests.attacks.memory import MIB
from tests.attacks.projects import Projects, make_projects
from tests.attacks.server import LEAST, Server
from tests.attacks.target import Ended, Target
from tests.support.installations import SCRIPTED, running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

MODELS = {"scripted": ("scripted", SCRIPTED), "demo": ("longhaul-demo", None)}
"""Name and models.toml of what may be attacked. `demo` is on vLLM."""
SIDE_BY_SIDE = 6
"""Attacks at once where their latencies are not judged."""
SIDE_BY_SIDE_SECONDS = 900.0
"""All of them are cut off after this time: on a slow machine each has as long as it needs."""
DEADLINES = {"LONGHAUL_BODY_SECONDS": "20", "LONGHAUL_WRITE_SECONDS": "10"}
"""Shorter than the defaults, so that attacks see how the server ends those who wait, and longer than an attack pauses
while another one beside it packs its bytes. All else is as by default."""


@dataclass(frozen=True, slots=True)
class Arena:
    """An installation, a bystander that asks it, and a look at its processes."""

    url: str
    model: str
    server: Server
    bystander: Bystander
    projects: Projects
    alone: dict[str, float] = field(default_factory=dict)
    """The p99 of each kind of the bystander's requests while nobody attacks, once `look_alone` has run."""

    async def look_alone(self) -> None:
        self.alone.update(p99s(await self.bystander.asks_alone()))

    @contextlib.asynccontextmanager
    async def target(self, attack: Attack) -> AsyncIterator[Target]:
        """The server as the attack's caller sees it."""
        own = self.projects.attacker if attack.limits is None else await self.projects.limited(attack.limits)
        secret, ports = own.key.secret, self.server.served_ports
        async with Target(self.url, self.model, secret=secret, projects=self.projects, served_ports=ports) as target:
            yield target


@contextlib.contextmanager
def arena(served: str = "scripted") -> Iterator[Arena]:
    """Starts `longhaul up` with one of MODELS; stops it at the end."""
    model, text = MODELS[served]
    with open_folder() as folder:
        models = folder / "models.toml" if text else None
        if models:
            models.write_text(str(text))
        installation = Longhaul(folder / "home", models, LONGHAUL_AUTH="keys", **DEADLINES)
        with running(installation) as longhaul:
            server = Server(longhaul)
            projects = asyncio.run(make_projects(server.database_url, server.redis_url))
            with standing_by(longhaul.url, model, projects.bystander.key.secret) as bystander:
                yield Arena(longhaul.url, model, server, bystander, projects)


async def attack(arena: Arena, attack: Attack, count: int) -> Observed:
    """Runs the attack `count` strong, and returns what was observed until the server was as before.

    It is repeated, up to ROUNDS times, while each round leaves memory behind.
    """
    observed = await _round(arena, attack, count)
    rounds = [observed]
    while len(rounds) < ROUNDS and any(each.keeps for each in (rounds[-1].api, rounds[-1].worker, rounds[-1].other)):
        rounds.append(await _round(arena, attack, count))
    return replace(
        observed,
        api=_of_all([each.api for each in rounds]),
        worker=_of_all([each.worker for each in rounds]),
        other=_of_all([each.other for each in rounds]),
        leftovers=tuple(left for each in rounds for left in each.leftovers),
    )


def _of_all(rounds: Sequence[Memory]) -> Memory:
    """The first round has the peak: a later one begins with what an earlier one left."""
    return replace(rounds[0], kept=tuple(kept for each in rounds for kept in each.kept))


async def _round(arena: Arena, attack: Attack, count: int) -> Observed:
    await arena.bystander.asks_since(time.monotonic())
    api_seconds = -arena.server.cpu_seconds("api")
    with arena.server.peaks() as peaks:
        started = time.monotonic()
        async with arena.target(attack) as target:
            was_cut_off = await _run(attack, target, count)
        api_seconds += arena.server.cpu_seconds("api")
        asks = await arena.bystander.asks_since(started)
    leftovers = await arena.server.leftovers()
    growth, kept = peaks.growth(), await arena.server.kept(peaks)
    memory = {role: Memory(growth[role], (kept[role],), LEAST[role]) for role in growth}
    return Observed(
        target.seen,
        asks,
        arena.alone,
        **memory,
        api_seconds=api_seconds,
        leftovers=leftovers,
        was_cut_off=was_cut_off,
    )


async def _run(attack: Attack, target: Target, count: int) -> bool:
    """Runs the attack up to its time limit. A bug of the attack is counted as an answer that no attack expects.

    Returns whether the limit ended it.
    """
    try:
        async with asyncio.timeout(attack.seconds):
            await attack.run(target, count)
    except TimeoutError:
        return True
    except Ended:
        pass
    except Exception as bug:
        first = bug.exceptions[0] if isinstance(bug, ExceptionGroup) else bug
        target.seen[f"nothing: the attack failed with {first!r:.200}"] += 1
    return False


async def side_by_side(arena: Arena, attacks: Sequence[Attack]) -> tuple[dict[str, Counter[str]], Observed]:
    """Runs the short forms of the attacks, several at once.

    Returns the answers of each, and what was observed of all together.
    """
    answers: dict[str, Counter[str]] = {}
    gate = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(attack: Attack) -> None:
        async with gate, arena.target(attack) as target:
            await _run(replace(attack, seconds=SIDE_BY_SIDE_SECONDS), target, attack.small)
            answers[attack.name] = target.seen

    async def all_of_them(_: Target, __: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in attacks:
                tasks.create_task(one(each))

    whole = Attack("all", "all attacks", all_of_them, 1, 1, frozenset(), seconds=SIDE_BY_SIDE_SECONDS)
    return answers, await _round(arena, whole, 1)


def line(attack: Attack, observed: Observed, problems: list[str]) -> str:
    """One row of the table."""
    answers = ", ".join(f"{count} x {answer}" for answer, count in observed.answers.most_common())
    kind, slowest = observed.slowest
    times = f"{1000 * observed.p50:6.0f} {1000 * slowest:6.0f} {kind:11} {observed.api_seconds:6.1f}"
    memory = " ".join(
        f"{each.peak // MIB:5} {'/'.join(str(kept // MIB) for kept in each.kept):>9}"
        for each in (observed.api, observed.worker, observed.other)
    )
    return f"{attack.name:30} {answers:80} {times} {memory}  {'; '.join(problems) or 'ok'}"


def line_alone(alone: Mapping[str, float]) -> str:
    """What the bystander's requests take while nobody attacks."""
    return "alone, p99 in ms: " + ", ".join(f"{kind} {1000 * seconds:.0f}" for kind, seconds in alone.items())


HEADER = (
    f"{'attack':30} {'answers':80} {'p50 ms':>6} {'p99 ms':>6} {'of':11} {'API s':>6}"
    f" {'API':>5} {'kept':>9} {'worker':>5} {'kept':>8} {'other':>5} {'kept':>9}"
    "  verdict (p99: of the slowest kind of requests; memory in MiB: the peak, and what each round kept; API s: its CPU"
    " time)"
)
