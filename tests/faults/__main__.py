"""`python -m tests.faults`: the whole suite, with progress."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
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


WHOLE = Plan(faults=1000, responses=2000, pause=1.2)


def _plan() -> tuple[Plan, int]:
    """What was asked for, on top of the whole suite, or of the plan that shows what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="everything random is drawn from it")
    parser.add_argument("--faults", type=int, help=f"default: {WHOLE.faults}")
    parser.add_argument("--responses", type=int, help=f"default: {WHOLE.responses}")
    parser.add_argument("--pause", type=float, help="mean seconds from one fault to the next")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--apis", type=int)
    parser.add_argument("--settle", dest="settle_seconds", type=float, help="seconds for everything to end")
    parser.add_argument("--at-once", type=int, help="responses in flight, at most")
    parser.add_argument("--demo", action="store_true", default=None, help="real vLLM with the demo model")
    parser.add_argument(
        "--only", dest="kinds", action="append", choices=KINDS, metavar="KIND", help="a kind of fault (repeatable)"
    )
    parser.add_argument("--logs", type=Path, help="a folder to keep the logs of all processes in")
    parser.add_argument("--break", dest="broken", choices=SHOWN_BY, help="switch a promise off; the checker notices")
    parser.add_argument("--handovers", type=int, default=30, help="workers to kill or stop in peace, for the times")
    chosen = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    handovers = chosen.pop("handovers")
    if "kinds" in chosen:
        chosen["kinds"] = frozenset(chosen["kinds"])
    base = plan_for(chosen["broken"]) if "broken" in chosen else WHOLE
    return replace(base, **chosen), handovers


async def _all(plan: Plan, handovers: int) -> bool:
    """The run, then the measurement; the lines that count come last. SIGTERM ends it as Ctrl-C does."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    report = await run(plan, _say)
    for line in report.lines():
        _say(line)
    waits = {}
    if handovers and not (plan.broken or plan.demo):
        waits = await measure(replace(plan, apis=1, flower=False, grace_seconds=0.0, logs=None), handovers, _say)
    for how, seconds in waits.items():
        _say(f"{len(seconds):6} streams went on after {how} of their worker, in peace: {spread(seconds)}")
    _say(f"{report.faults.total()} faults, {report.responses} responses, {len(report.violations)} violations")
    return report.ok


def main() -> int:
    return 0 if asyncio.run(_all(*_plan())) else 1


if __name__ == "__main__":
    sys.exit(main())
