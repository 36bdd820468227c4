"""Runs attacks against one installation, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.attacks.attack import MIB, Attack, Observed
from tests.attacks.bystander import Bystander, standing_by
from tests.attacks.server import Server
from tests.attacks.target import Ended, Target
from tests.support.installations import SCRIPTED, running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

SCRIPTED_MODEL = "scripted"
DEMO_MODEL = "longhaul-demo"


@dataclass(frozen=True, slots=True)
class Arena:
    """An installation with default settings, a bystander that asks it, and a look at its processes."""

    url: str
    model: str
    server: Server
    bystander: Bystander


@contextlib.contextmanager
def arena(*, demo: bool = False) -> Iterator[Arena]:
    """Starts `longhaul up` with the scripted engine, or with the demo model on vLLM; stops it at the end."""
    with open_folder() as folder:
        models = None
        if not demo:
            models = folder / "models.toml"
            models.write_text(SCRIPTED)
        model = DEMO_MODEL if demo else SCRIPTED_MODEL
        with running(Longhaul(folder / "home", models)) as longhaul, standing_by(longhaul.url, model) as bystander:
            yield Arena(longhaul.url, model, Server(longhaul), bystander)


async def attack(arena: Arena, attack: Attack, count: int) -> Observed:
    """Runs the attack `count` strong, and returns what was observed until the server was as before."""
    await arena.bystander.asks_since(time.monotonic())
    with arena.server.peaks() as peaks:
        started = time.monotonic()
        async with Target(arena.url, arena.model, redis_url=arena.server.redis_url) as target:
            await _run(attack, target, count)
        asks = await arena.bystander.asks_since(started)
    leftovers = await arena.server.leftovers()
    return Observed(target.seen, asks, peaks.growth("api"), peaks.growth("worker"), leftovers)


async def _run(attack: Attack, target: Target, count: int) -> None:
    """Runs the attack up to its time limit. A bug of the attack is counted as an answer that no attack expects."""
    try:
        async with asyncio.timeout(attack.seconds):
            await attack.run(target, count)
    except (TimeoutError, Ended):
        pass
    except Exception as bug:
        first = bug.exceptions[0] if isinstance(bug, ExceptionGroup) else bug
        target.seen[f"nothing: the attack failed with {first!r:.200}"] += 1


def line(attack: Attack, observed: Observed, problems: list[str]) -> str:
    """One row of the table."""
    answers = ", ".join(f"{count} x {answer}" for answer, count in observed.answers.most_common(4))
    times = f"{1000 * observed.p50:6.0f} {1000 * observed.p99:6.0f}"
    memory = f"{observed.api_growth // MIB:5} {observed.worker_growth // MIB:6}"
    return f"{attack.name:30} {answers:44} {times} {memory}  {'; '.join(problems) or 'ok'}"


HEADER = f"{'attack':30} {'answers':44} {'p50 ms':>6} {'p99 ms':>6} {'API':>5} {'worker':>6}  verdict (memory in MiB)"
