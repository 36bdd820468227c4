"""`python -m tests.faults`: runs the whole suite and prints its progress."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path

from tests.faults.breaks import BREAKS, plan_for
from tests.faults.driver import run
from tests.faults.kinds import KINDS
from tests.faults.plan import Plan

WHOLE = Plan(faults=1000, responses=2000, batches=200, pause=1.2, at_once=32, keys=True, concurrency=4, servers=1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _plan() -> Plan:
    """The plan that the arguments describe.

    Fewer faults come with fewer responses and batches: all of a whole run would take its limited project 20 minutes.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="all random choices come from it")
    parser.add_argument("--faults", type=int, help=f"default: {WHOLE.faults}")
    parser.add_argument("--only", dest="kinds", action="append", choices=KINDS, metavar="KIND", help="(repeatable)")
    parser.add_argument("--standby", action="store_true", default=None, help="fail over to a standby now and then")
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes in this folder")
    parser.add_argument("--break", dest="broken", choices=BREAKS, help="switch off one promise: the run must fail")
    chosen = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    base = plan_for(chosen.pop("broken")) if "broken" in chosen else WHOLE
    if "kinds" in chosen:
        chosen["kinds"] = frozenset(chosen["kinds"])
    plan = replace(base, **chosen)
    share = plan.faults / base.faults
    return replace(plan, responses=round(base.responses * share), batches=round(base.batches * share))


async def _all(plan: Plan) -> bool:
    """Returns whether no promise was broken. SIGTERM ends it as Ctrl-C does."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    report = await run(plan, _say)
    for line in report.lines():
        _say(line)
    return report.ok


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_all(_plan())) else 1)
