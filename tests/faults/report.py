"""The outcome of a run, in a few lines."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.faults.arena import Takeover
from tests.faults.checker import Violation
from tests.faults.records import Story

SHOWN = 40
_DETAILS = re.compile(r"resp_[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]+|\d+")


@dataclass(slots=True)
class Report:
    """The outcome of a run."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """Faults that could not be inflicted."""
    violations: list[Violation] = field(default_factory=list)
    error_lines: list[str] = field(default_factory=list)
    """Log lines at ERROR or above."""
    statuses: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    responses: int = 0
    """All rows there ever were, deleted ones and those whose POST lost its answer included."""
    events: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    """By status."""
    results: Counter[str] = field(default_factory=Counter)
    """Results of their lines, by status."""
    followed: list[int] = field(default_factory=list)
    """The connections of each reader that followed a batch."""
    readers: int = 0
    resumed: int = 0
    """Connections of readers beyond their first."""
    refused: int = 0
    """Requests that a limit of their project refused; their clients repeated them."""
    attempts: int = 0
    """Claims beyond each response's first."""
    yields: int = 0
    """How often background responses yielded to foreground ones; those of deleted responses are not counted."""
    upgraded: int = 0
    """Responses that a worker of a later layout claimed."""
    pauses: dict[str, list[float]] = field(default_factory=dict)
    """Signal -> seconds from it to the next event of each stream of its worker."""

    @property
    def ok(self) -> bool:
        """Whether no promise was broken and the suite itself had no error."""
        return not self.violations and not self.failures

    def lines(self) -> Iterator[str]:
        for name, count in self.faults.most_common():
            yield f"{count:6} {name}"
        yield f"{self.faults.total():6} faults in {self.seconds:.0f} s, seed {self.seed}"
        yield f"{self.responses:6} responses: {_counts(self.statuses)}; {_counts(self.forms)}"
        yield f"{self.events:6} events; {self.readers} readers resumed {self.resumed} times"
        if self.batches:
            yield f"{self.batches.total():6} batches: {_counts(self.batches)}"
            resumed = f"{len(self.followed)} readers resumed {sum(self.followed) - len(self.followed)} times"
            yield f"{self.results.total():6} results of lines: {_counts(self.results)}; {resumed}"
        yield f"{self.attempts:6} takeovers of responses, {self.yields} of them after a yield"
        yield f"{self.refused:6} requests were refused by limits"
        if self.upgraded:
            yield f"{self.upgraded:6} responses of the version before were run by the next one"
        for name, pauses in self.pauses.items():
            yield f"{len(pauses):6} streams continued after {name} of their worker: {spread(pauses)}"
        for line, count in Counter(map(_without_details, self.error_lines)).most_common(SHOWN):
            yield f"{count:6} times logged: {line[:200]}"
        for failure in self.failures[:SHOWN]:
            yield f" suite {failure}"
        for violation in self.violations[:SHOWN]:
            yield f"BROKEN {violation}"
        for rule, count in Counter(violation.rule for violation in self.violations).most_common():
            yield f"{count:6} times broken: {rule}"
        yield f"{len(self.violations):6} violations"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


def _without_details(line: str) -> str:
    """A log line without its time, ids and numbers."""
    return _DETAILS.sub("…", line.split("Z ", 1)[-1])


def spread(seconds: Sequence[float]) -> str:
    """p50, p95 (by nearest rank) and the maximum."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    p50, p95 = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.95))
    return f"p50 {p50:.2f} s, p95 {p95:.2f} s, max {ordered[-1]:.2f} s"


def pauses(takeovers: Sequence[Takeover], stories: Sequence[Story]) -> dict[str, list[float]]:
    """Signal -> seconds until a reader of each stream had the first event that was not committed at the signal."""
    readers = {story.response_id: story.readers for story in stories if story.response_id is not None}
    found: dict[str, list[float]] = {}
    for takeover in takeovers:
        for response_id, last in takeover.last.items():
            arrivals = [
                seen.arrivals[last - seen.after]
                for seen in readers.get(response_id, ())
                if 0 <= last - seen.after < len(seen.arrivals)
            ]
            if arrivals:
                found.setdefault(takeover.signal, []).append(min(arrivals) - takeover.at)
    return found
