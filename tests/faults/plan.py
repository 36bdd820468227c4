"""What a run is to be: sizes, rates, and the seed that everything random is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LEASE_SECONDS = 3.0
MODEL = "scripted"
DEMO = "longhaul-demo"

MODELS = """
[[models]]
name = "scripted"
engine = "scripted"
reasoning_parser = "marks"
tool_parser = "marks"
[models.engine_args]
tokens_per_second = {rate}
tokens_per_delta = {delta}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of the suite."""

    seed: int = 1
    faults: int = 40
    responses: int = 80
    pause: float = 1.0
    """Mean seconds from one fault to the next."""
    at_once: int = 24
    """Responses that clients have in flight at once, at most."""
    apis: int = 2
    workers: int = 3
    maintenances: int = 2
    flower: bool = True
    kinds: frozenset[str] | None = None
    """Names of the faults to inflict; None: all."""
    in_turn: bool = False
    """Every kind in its turn, one after the other, each while a worker is in the middle of something: that one is hit.

    By default the seed decides, and faults overlap.
    """
    until_taken_over: bool = False
    """A fault in its turn is repeated until something of what its worker ran was taken over."""
    broken: str | None = None
    """A promise to switch off (`breaks`)."""
    tokens_per_second: float = 100.0
    tokens_per_delta: int = 4
    concurrency: int = 64
    """Responses that one worker runs at once."""
    grace_seconds: float = 0.5
    max_crashes: int = 100
    logs: Path | None = None
    """Where to keep the logs of the processes; None: they go with the fleet."""
    settle_seconds: float = 90.0
    """How long everything may take to end once all is whole again."""

    demo: bool = False
    """The demo model on real vLLM in place of the scripted engine."""

    @property
    def whole_seconds(self) -> float:
        """How long processes may take to be there again; vLLM takes its time on a busy machine."""
        return 300.0 if self.demo else 90.0

    @property
    def model(self) -> str:
        return DEMO if self.demo else MODEL

    @property
    def chained(self) -> float:
        """The share of requests that continue another: what the demo model says to those, nobody knows beforehand."""
        return 0.0 if self.demo else 0.15

    @property
    def models(self) -> str | None:
        """A models file of the run's own; None: the checkout's, with the demo model."""
        return None if self.demo else MODELS.format(rate=self.tokens_per_second, delta=self.tokens_per_delta)

    @property
    def settings(self) -> dict[str, str]:
        """The environment of every process, on top of addresses."""
        return {
            "LONGHAUL_LEASE_SECONDS": str(LEASE_SECONDS),
            "LONGHAUL_MAX_CRASHES": str(self.max_crashes),
            "LONGHAUL_SHUTDOWN_GRACE_SECONDS": str(self.grace_seconds),
            "LONGHAUL_KEEPALIVE_SECONDS": "1.5",
            "LONGHAUL_READER_POLL_SECONDS": "1",
            "LONGHAUL_WORKER_CONCURRENCY": str(self.concurrency),
            "LONGHAUL_DATABASE_POOL": "6",
        }
