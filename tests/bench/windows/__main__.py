"""The table in docs/internals/decisions/windows.md: `python -m tests.bench.windows`, some seconds."""

from __future__ import annotations

from click import echo

from tests.bench.windows.loads import SCENARIOS
from tests.bench.windows.simulation import DeadlinesFirst, Fifo, Policy, Simulation


def main() -> None:
    echo("| load | order | in time | late | tokens in vain | `b`'s tokens | `b` waits | `a`'s ordinary work waits |")
    echo("|---|---|--:|--:|--:|--:|--:|--:|")
    for make in SCENARIOS:
        made = make()
        for policy in (Policy(), DeadlinesFirst(), Fifo()):
            found = Simulation(made.jobs, policy).run(made.hours)
            figures = f"{len(found.in_time):,} | {len(found.missed):,} | {found.wasted:,} | {found.served['b']:,}"
            waits = [f"{found.waits(made.of(project, in_window=False)):,.0f} s" for project in "ba"]
            echo(f"| {made.name} | {policy.name} | {figures} | {' | '.join(waits)} |")


if __name__ == "__main__":
    main()
