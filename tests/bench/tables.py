"""Results as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from tests.bench.load import Mode
from tests.bench.metrics import Metric, cpu_by_role, ratio, spread
from tests.bench.numbers import Spread
from tests.bench.plan import Name
from tests.bench.processes import Role
from tests.bench.results import Results
from tests.bench.targets import verdicts

COMPARED = (Metric.TOKENS, Metric.TTFT_P50, Metric.TTFT_P95, Metric.INTER_P50, Metric.INTER_P95, Metric.GAP_P95)
ARRIVED = (Metric.TTFT_P50, Metric.TTFT_P95, Metric.TTFT_P99, Metric.IN_TIME)
COSTS = (Metric.FRAMES, Metric.WAL)
POSTS = (Metric.RESPONSES, Metric.POST_P50, Metric.POST_P99, Metric.POST_CPU)
TEXTS = frozenset({"load", "target", "metric", "contender", "measured", "required"})
_MET = {None: "not measured", True: "yes", False: "**no**"}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table. Columns named in `TEXTS` are text; the others are numbers, aligned to the right."""
    align = "|".join(["", *("--" if name in TEXTS else "--:" for name in header), ""])
    return [_line(header), align, *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Three significant digits; whole numbers from 100 on."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread_text(found: Spread | None) -> str:
    """`median (lowest to highest)`."""
    if found is None:
        return ""
    if found.count == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def targets(found: Mapping[str, Results]) -> list[str]:
    rows = [
        (each.target.says, str(each.target.metric), each.target.required, spread_text(each.measured), _MET[each.met])
        for each in verdicts(found)
    ]
    return markdown(("target", "metric", "required", "measured", "met"), rows)


def compared(results: Results) -> list[str]:
    """The tables of a comparison, as far as they have rows."""
    lines = [about(results)]
    for table in (comparison(results), posts(results), arrivals(results), costs(results)):
        lines += ["", *table] if table else []
    return lines


def comparison(results: Results) -> list[str]:
    """Medians of all rounds; behind tokens/s Longhaul's ratio to `vllm serve`."""
    rows = []
    for cell in results.cells():
        for contender in results.contenders():
            if results.of(contender, cell):
                values = [number(_median(spread(results, contender, cell, metric))) for metric in COMPARED]
                against = None if contender == Name.PEER else ratio(results, contender, Name.PEER, cell, Metric.TOKENS)
                rows.append((cell, contender, values[0], spread_text(against), *values[1:]))
    header = ("load", "contender", COMPARED[0].value, "x vllm serve", *(metric.value for metric in COMPARED[1:]))
    return markdown(header, rows)


def posts(results: Results) -> list[str]:
    """Times of background POSTs; empty if none were measured."""
    rows = [
        (cell, contender, *(number(_median(spread(results, contender, cell, metric))) for metric in POSTS))
        for cell in results.cells()
        for contender in results.contenders()
        if spread(results, contender, cell, Metric.POST_P50)
    ]
    return markdown(("load", "contender", *(metric.value for metric in POSTS)), rows) if rows else []


def arrivals(results: Results) -> list[str]:
    """Rows of streams that come at random, each with its ratio to `vllm serve`; empty if none were measured."""
    rows = []
    for cell in results.cells():
        for contender in results.contenders() if cell.startswith(Mode.ARRIVE) else ():
            if results.of(contender, cell):
                values = [number(_median(spread(results, contender, cell, metric))) for metric in ARRIVED]
                others = [spread_text(ratio(results, contender, Name.PEER, cell, metric)) for metric in ARRIVED]
                against = others if contender != Name.PEER else [""] * len(others)
                rows.append((cell, contender, *chain.from_iterable(zip(values, against, strict=True))))
    header = chain.from_iterable((metric.value, "x") for metric in ARRIVED)
    return markdown(("load", "contender", *header), rows) if rows else []


def costs(results: Results) -> list[str]:
    """CPU seconds per 1,000 tokens by role, bytes per token."""
    roles = [role for role in Role if any(role in sample.measured.cpu for sample in results.samples)]
    rows = []
    for cell in results.cells():
        for contender in results.contenders():
            if used := cpu_by_role(results, contender, cell):
                seconds = [f"{used[role]:.3f}" if role in used else "" for role in roles]
                rows.append(
                    (cell, contender, *seconds, *(number(_median(spread(results, contender, cell, m))) for m in COSTS))
                )
    header = ("load", "contender", *(f"{role} CPU s" for role in roles), *(f"{metric}/token" for metric in COSTS))
    return markdown(header, rows)


def about(results: Results) -> str:
    """Where and when the results were measured, in one line."""
    about = results.about
    line = (
        f"{about['date']} UTC, commit {about['commit']}, {about['cores']} cores ({about['cpu']}), vLLM {about['vllm']}"
    )
    return line + (". **A foreign engine was running: the numbers mean little.**" if results.disturbed else ".")


def _median(found: Spread | None) -> float | None:
    return None if found is None else found.median
