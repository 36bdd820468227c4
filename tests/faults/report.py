"""The outcome of a run, in a few lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.checker import Violation

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
    counts: list[str] = field(default_factory=list)
    """What there was of everything."""
    upgraded: int = 0
    """Responses that a worker of a later layout claimed."""

    @property
    def ok(self) -> bool:
        """Whether no promise was broken and the suite itself had no error."""
        return not self.violations and not self.failures

    def lines(self) -> Iterator[str]:
        for name, count in self.faults.most_common():
            yield f"{count:6} {name}"
        yield f"{self.faults.total():6} faults in {self.seconds:.0f} s, seed {self.seed}"
        yield from self.counts
        for line, count in Counter(map(_without_details, self.error_lines)).most_common(SHOWN):
            yield f"{count:6} times logged: {line[:200]}"
        for failure in self.failures[:SHOWN]:
            yield f" suite {failure}"
        for violation in self.violations[:SHOWN]:
            yield f"BROKEN {violation}"
        for rule, count in Counter(violation.rule for violation in self.violations).most_common():
            yield f"{count:6} times broken: {rule}"
        yield f"{len(self.violations):6} violations"


def _without_details(line: str) -> str:
    """A log line without its time, ids and numbers."""
    return _DETAILS.sub("…", line.split("Z ", 1)[-1])
