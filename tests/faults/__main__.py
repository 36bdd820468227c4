"""`python -m tests.faults`: the whole suite, with progress."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import fields, replace
from pathlib import Path

from tests.faults.driver import run
from tests.faults.handover import measure
from tests.faults.plan import Plan
from tests.faults.report import spread


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _plan() -> tuple[Plan, int]:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    defaults = {field.name: field.default for field in fields(Plan)}
    parser.add_argument("--seed", type=int, default=1, help="everything random is drawn from it")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--responses", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=1.2, help="mean seconds from one fault to the next")
    parser.add_argument("--workers", type=int, default=defaults["workers"])
    parser.add_argument("--apis", type=int, default=defaults["apis"])
    parser.add_argument("--settle", dest="settle_seconds", type=float, default=defaults["settle_seconds"])
    parser.add_argument("--at-once", type=int, default=defaults["at_once"], help="responses in flight, at most")
    parser.add_argument("--demo", action="store_true", help="real vLLM with the demo model")
    parser.add_argument("--only", action="append", help="a kind of fault to inflict (may be repeated); all by default")
    parser.add_argument("--logs", type=Path, help="a folder to keep the logs of all processes in")
    parser.add_argument("--break", dest="broken", help="switch a promise off, to see that the checker notices")
    parser.add_argument("--handovers", type=int, default=30, help="workers to kill or stop in peace, for the times")
    chosen = vars(parser.parse_args())
    only, handovers = chosen.pop("only"), chosen.pop("handovers")
    return Plan(**chosen, kinds=frozenset(only) if only else None), handovers


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
