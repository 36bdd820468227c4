"""`python -m tests.faults`: runs the whole suite and prints its progress."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults.breaks import SHOWN_BY, plan_for
from tests.faults.driver import run
from tests.faults.handover import measure
from tests.faults.kinds import KINDS
from tests.faults.plan import Plan
from tests.faults.report import spread


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


WHOLE = Plan(faults=1000, responses=2000, batches=200, pause=1.2, at_once=32, keys=True, concurrency=4)


def plan_of(arguments: Sequence[str] | None = None) -> tuple[Plan, int]:
    """The plan that the arguments (None: those of this process) describe, and the number of handovers to measure.

    Arguments change the whole suite's plan or, with `--break`, the plan that shows the broken promise. Fewer faults
    come with fewer responses and batches: all of a whole run would take its limited project 20 minutes.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="all random choices come from it")
    parser.add_argument("--faults", type=int, help=f"default: {WHOLE.faults}")
    parser.add_argument("--responses", type=int, help="default: in proportion to the faults")
    parser.add_argument("--pause", type=float, help="mean seconds from one fault to the next")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--apis", type=int)
    parser.add_argument("--end-seconds", dest="settle_seconds", type=float, help="seconds that responses have to end")
    parser.add_argument("--at-once", type=int, help="maximum of responses in flight")
    parser.add_argument("--concurrency", type=int, help="maximum of responses that one worker runs at a time")
    parser.add_argument("--demo", action="store_true", default=None, help="run the demo model on real vLLM")
    parser.add_argument(
        "--only",
        dest="kinds",
        action="append",
        choices=KINDS,
        metavar="KIND",
        help="inflict only this kind of fault (repeatable)",
    )
    parser.add_argument(
        "--upgrade",
        action="store_true",
        default=None,
        help="upgrade to a version with another row layout in the middle",
    )
    parser.add_argument(
        "--standby", action="store_true", default=None, help="run Postgres with a standby, and fail over to it"
    )
    parser.add_argument("--pgbouncer", choices=("session", "transaction"), help="put PgBouncer before Postgres")
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes in this folder")
    parser.add_argument("--break", dest="broken", choices=SHOWN_BY, help="switch off one promise: the run must fail")
    parser.add_argument(
        "--handovers",
        type=int,
        default=30,
        help="workers to kill or stop afterwards, to measure how long streams pause",
    )
    chosen = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    handovers = chosen.pop("handovers")
    if "kinds" in chosen:
        chosen["kinds"] = frozenset(chosen["kinds"])
    base = plan_for(chosen["broken"]) if "broken" in chosen else WHOLE
    faults = chosen.get("faults", base.faults)
    chosen.setdefault("responses", base.responses * faults // base.faults)
    chosen["batches"] = 0 if "demo" in chosen else base.batches * faults // base.faults
    return replace(base, **chosen), handovers


async def _all(plan: Plan, handovers: int) -> bool:
    """Runs the plan, then measures handovers. Returns whether no promise was broken. SIGTERM ends it as Ctrl-C does."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    report = await run(plan, _say)
    for line in report.lines():
        _say(line)
    waits = {}
    if handovers and not (plan.broken or plan.demo):
        streams = Plan(seed=plan.seed, apis=1, workers=plan.workers, flower=False, grace_seconds=0.0)
        waits = await measure(streams, handovers, _say)
    for name, seconds in waits.items():
        _say(
            f"{len(seconds):6} streams continued after {name} of their worker, without other faults: {spread(seconds)}"
        )
    _say(f"{report.faults.total()} faults, {report.responses} responses, {len(report.violations)} violations")
    return report.ok


def main() -> int:
    return 0 if asyncio.run(_all(*plan_of())) else 1


if __name__ == "__main__":
    sys.exit(main())
