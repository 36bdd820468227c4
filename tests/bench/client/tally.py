"""What one client counts."""

from __future__ import annotations

import resource
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.bench.client.scan import Scan
from tests.bench.load import FIRST_SECONDS, TOKEN_SECONDS, Figures, Time
from tests.bench.numbers import quantiles

COMPLAINTS = 3
ENDED = frozenset({"completed", "incomplete"})
"""The statuses of a response that went well."""


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(slots=True)
class Tally:
    """Sums and times (seconds) of the requests so far."""

    ok: int = 0
    errors: int = 0
    complaints: list[str] = field(default_factory=list)
    tokens: int = 0
    events: int = 0
    deltas: int = 0
    frame_bytes: int = 0
    times: defaultdict[Time, list[float]] = field(default_factory=lambda: defaultdict(list))
    tokens_in_time: int = 0

    def complain(self, error: object) -> None:
        self.errors += 1
        if len(self.complaints) < COMPLAINTS:
            self.complaints.append(f"{type(error).__name__}: {error}"[:300])

    def ended(self, response: dict[str, Any]) -> int:
        """Takes its usage; returns its output tokens. Raises ValueError where it did not end well."""
        if response["status"] not in ENDED:
            raise ValueError(f"it is {response['status']}: {response.get('error')}")
        tokens: int = response["usage"]["output_tokens"]
        self.tokens += tokens
        return tokens

    def streamed(self, scan: Scan, begun: float) -> None:
        """Takes what a stream showed. Raises ValueError where it did not end well."""
        tokens = self.ended(scan.response())
        self.events += scan.events
        self.deltas += scan.deltas
        self.frame_bytes += scan.bytes
        self.times[Time.GAP] += scan.gaps
        if scan.first is not None:
            self.times[Time.TTFT].append(scan.first - begun)
        if scan.first is not None and scan.last is not None and tokens > 1:
            each = (scan.last - scan.first) / (tokens - 1)
            self.times[Time.INTER_TOKEN].append(each)
            if scan.first - begun <= FIRST_SECONDS and each <= TOKEN_SECONDS:
                self.tokens_in_time += tokens

    def figures(self, seconds: float, cpu: float, realtime: bool) -> Figures:
        return Figures(
            seconds=seconds,
            ok=self.ok,
            errors=self.errors,
            complaints=self.complaints,
            tokens=self.tokens,
            events=self.events,
            deltas=self.deltas,
            frame_bytes=self.frame_bytes,
            client_cpu=cpu,
            realtime=realtime,
            times={time.value: quantiles(values) for time, values in self.times.items()},
            tokens_in_time=self.tokens_in_time,
        )
