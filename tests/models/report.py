"""What a check of a model's script finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One turn in one context."""

    turn: str
    plain: bool
    exact: bool
    sureness: float
    """What the check measures of it: more is better."""


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]
    least: str
    """What the smallest sureness is called."""

    def __str__(self) -> str:
        parts = [self._part("plain", True), self._part("random context", False)]
        wrong = [finding.turn for finding in self.findings if not finding.exact]
        return "; ".join(parts) + (f"; wrong: {', '.join(wrong[:12])}" if wrong else "")

    def _part(self, name: str, plain: bool) -> str:
        chosen = [finding for finding in self.findings if finding.plain == plain]
        exact = sum(finding.exact for finding in chosen)
        return f"{name}: {exact}/{len(chosen)} exact, {self.least} {min(each.sureness for each in chosen):.3f}"
