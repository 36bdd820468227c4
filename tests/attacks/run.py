"""Runs attacks against one installation: one after the other, or side by side."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.attacks.attack import MIB, ROUNDS, Attack, Observed, p99s
from tests.attacks.bystander import Bystander, standing_by
from tests.attacks.projects import Projects
from tests.attacks.server import Server
from tests.attacks.target import Target
from tests.support.installations import SCRIPTED, running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

MODEL = "scripted"
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
        async with Target(self.url, MODEL, own, self.projects, self.server.served_ports) as target:
            yield target


@contextlib.contextmanager
def arena() -> Iterator[Arena]:
    """Starts `longhaul up`; stops it at the end."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(SCRIPTED)
        with running(Longhaul(folder / "home", models, LONGHAUL_AUTH="keys", **DEADLINES)) as longhaul:
            server = Server(longhaul)
            projects = asyncio.run(Projects.make(server.database_url, server.redis_url))
            with standing_by(longhaul.url, MODEL, projects.bystander.key.secret) as bystander:
                yield Arena(longhaul.url, server, bystander, projects)


async def attack(arena: Arena, attack: Attack, count: int) -> Observed:
    """Runs the attack `count` strong, and returns what was observed until the server was as before.

    It is repeated, up to ROUNDS times, while each round leaves memory behind. The first round has the peak: a later one
    begins with what an earlier one left.
    """
    found = await _round(arena, attack, count)
    for _ in range(ROUNDS - 1):
        if not any(each.keeps for each in found.memory.values()):
            break
        again = await _round(arena, attack, count)
        memory = {role: replace(each, kept=each.kept + again.memory[role].kept) for role, each in found.memory.items()}
        found = replace(found, memory=memory, leftovers=found.leftovers + again.leftovers)
    return found


async def _round(arena: Arena, attack: Attack, count: int) -> Observed:
    await arena.bystander.asks_since(time.monotonic())
    with arena.server.peaks() as (before, most):
        started = time.monotonic()
        async with arena.target(attack) as target:
            was_cut_off = await _run(attack, target, count)
        asks = await arena.bystander.asks_since(started)
    leftovers, memory = await arena.server.leftovers(), await arena.server.memory(before, most)
    return Observed(target.seen, asks, arena.alone, memory, leftovers, was_cut_off)


async def _run(attack: Attack, target: Target, count: int) -> bool:
    """Runs the attack up to its time limit. A bug of the attack is counted as an answer that no attack expects.

    Returns whether the limit ended it.
    """
    try:
        async with asyncio.timeout(attack.seconds):
            await attack.run(target, count)
    except TimeoutError:
        return True
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
    kind, slowest = max(p99s(observed.asks).items(), key=lambda each: each[1], default=("none", 0.0))
    memory = " ".join(
        f"{each.peak // MIB:6} {'/'.join(str(kept // MIB) for kept in each.kept):>9}"
        for each in observed.memory.values()
    )
    return f"{attack.name:26} {answers:70} {1000 * slowest:6.0f} {kind:11} {memory}  {'; '.join(problems) or 'ok'}"


HEADER = (
    f"{'attack':26} {'answers':70} {'p99 ms':>6} {'of':11} {'API':>6} {'kept':>9} {'worker':>6} {'kept':>9}"
    f" {'other':>6} {'kept':>9}  verdict (p99: of the slowest kind of requests; memory in MiB)"
)
