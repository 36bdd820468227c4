"""Attacks an installation of its own as one caller would, and judges what a bystander and the memory say."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.attacks.attack import Attack, judge
from tests.attacks.catalog import ATTACKS
from tests.attacks.run import HEADER, MODELS, Arena, arena, attack, line, line_alone


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this attack only; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the attacks and end")
    parser.add_argument("--small", action="store_true", help="the short form, whose latencies are not judged")
    parser.add_argument("--model", choices=MODELS, default="scripted", help="demo: on vLLM")
    return parser.parse_args()


async def _all(arena: Arena, attacks: list[Attack], *, small: bool, any_model: bool) -> int:
    """Runs the attacks and prints a line for each. Returns how many are harmful."""
    await arena.look_alone()
    say(line_alone(arena.alone))
    say(HEADER)
    harmful = 0
    for each in attacks:
        observed = await attack(arena, each, each.small if small else each.full)
        problems = judge(each, observed, full=not small, any_model=any_model)
        harmful += bool(problems)
        say(line(each, observed, problems))
    say(f"{len(attacks)} attacks, {harmful} harmful")
    return harmful


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program for the terminal


def main() -> int:
    chosen = _arguments()
    unknown = set(chosen.only or ()) - {each.name for each in ATTACKS}
    if unknown:
        say(f"no such attack: {', '.join(sorted(unknown))} (--list shows all)")
        return 2
    attacks = [each for each in ATTACKS if not chosen.only or each.name in chosen.only]
    if chosen.list:
        for each in attacks:
            say(f"{each.name:30} {each.about}")
        return 0
    any_model = chosen.model != "scripted"
    with arena(chosen.model) as running:
        return 1 if asyncio.run(_all(running, attacks, small=chosen.small, any_model=any_model)) else 0


if __name__ == "__main__":
    sys.exit(main())
