"""Attacks an installation of its own as one caller would, and judges what a bystander and the memory say."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.attacks.attack import Attack, judge
from tests.attacks.catalog import ATTACKS
from tests.attacks.run import HEADER, Arena, arena, attack, line


async def _all(arena: Arena, attacks: list[Attack], *, small: bool) -> int:
    """Runs the attacks and prints a line for each. Returns how many are harmful."""
    await arena.look_alone()
    say("alone, p99 in ms: " + ", ".join(f"{kind} {1000 * seconds:.0f}" for kind, seconds in arena.alone.items()))
    say(HEADER)
    harmful = 0
    for each in attacks:
        observed = await attack(arena, each, each.small if small else each.full)
        problems = judge(each, observed, full=not small)
        harmful += bool(problems)
        say(line(each, observed, problems))
    say(f"{len(attacks)} attacks, {harmful} harmful")
    return harmful


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program for the terminal


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    names = [each.name for each in ATTACKS]
    parser.add_argument("--only", action="append", choices=names, help="run this attack only; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the attacks and end")
    parser.add_argument("--small", action="store_true", help="the short form, whose latencies are not judged")
    chosen = parser.parse_args()
    attacks = [each for each in ATTACKS if not chosen.only or each.name in chosen.only]
    if chosen.list:
        for each in attacks:
            say(f"{each.name:26} {each.about}")
        return 0
    with arena() as running:
        return 1 if asyncio.run(_all(running, attacks, small=chosen.small)) else 0


if __name__ == "__main__":
    sys.exit(main())
