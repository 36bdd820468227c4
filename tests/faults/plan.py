"""The parameters of a run: sizes, rates, and the seed of all random choices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LEASE_SECONDS = 3.0
RESERVED_TOKENS = 1000
"""Output tokens that a request reserves. Some answers are longer: they are charged for more than they reserved."""
MODEL = "scripted"
DEMO = "longhaul-demo"

MODELS = """
[[models]]
name = "{name}"
engine = "tests.support.scripted:ScriptedEngine"
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
    batches: int = 0
    """How many of them clients create beside the responses."""
    pause: float = 1.0
    """Mean seconds from one fault to the next."""
    at_once: int = 24
    """Maximum of responses that clients have in flight."""
    apis: int = 2
    workers: int = 3
    maintenances: int = 2
    flower: bool = True
    kinds: frozenset[str] | None = None
    """Names of the kinds of faults to inflict; None means all."""
    in_turn: bool = False
    """Inflict the kinds in turn, one at a time, each on a worker that is running responses.

    By default the seed chooses the kinds, and faults overlap.
    """
    until_taken_over: bool = False
    """Repeat a fault until another worker has taken over a response of its target."""
    broken: str | None = None
    """The promise to switch off (`breaks`)."""
    tokens_per_second: float = 100.0
    tokens_per_delta: int = 4
    concurrency: int = 64
    """Maximum of responses that one worker runs at a time."""
    grace_seconds: float = 0.5
    max_crashes: int = 100
    logs: Path | None = None
    """Where to keep the logs of the processes; None: they are deleted with the fleet."""
    settle_seconds: float = 90.0
    """How long responses may take to end once all processes and services run again."""

    keys: bool = False
    """Ask for API keys: clients belong to two projects with limits, and what they use is compared with the ledger."""
    standby: bool = False
    """Run Postgres with a synchronous standby, and fail over to it now and then."""
    passfile: bool = False
    """Leave the password of Postgres to a file that PGPASSFILE names."""
    pgbouncer: str | None = None
    """Put PgBouncer before Postgres, in this mode: `session` or `transaction`."""
    upgrade: bool = False
    """Upgrade from this version to the next one (tests/support/next_version.py) in the middle of the run."""
    more_models: int = 0
    """How many models there are besides the first. Workers serve them in turn."""
    demo: bool = False
    """Run the demo model on real vLLM instead of the scripted engine."""

    @property
    def whole_seconds(self) -> float:
        """How long processes may take to be ready again; vLLM starts slowly on a busy machine."""
        return 300.0 if self.demo else 90.0

    @property
    def model(self) -> str:
        return DEMO if self.demo else MODEL

    @property
    def chained(self) -> float:
        """The share of requests that continue another. None with the demo model: its answers to those are not known."""
        return 0.0 if self.demo else 0.15

    @property
    def conversations(self) -> int:
        """How many each project has. Each stays small enough for the context of the scripted engine."""
        return 2 + self.responses // 40 if self.keys and self.chained else 0

    @property
    def models(self) -> str | None:
        """The text of the run's models file; None: use the file of the checkout, which has the demo model."""
        rates = {"rate": self.tokens_per_second, "delta": self.tokens_per_delta}
        return None if self.demo else "".join(MODELS.format(name=name, **rates) for name in self.names)

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return [self.model, *(f"{self.model}-{number}" for number in range(2, self.more_models + 2))]

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables of every process, besides addresses."""
        return {
            "LONGHAUL_LEASE_SECONDS": str(LEASE_SECONDS),
            "LONGHAUL_MAX_CRASHES": str(self.max_crashes),
            "LONGHAUL_SHUTDOWN_GRACE_SECONDS": str(self.grace_seconds),
            "LONGHAUL_API_GRACE_SECONDS": str(self.grace_seconds),
            "LONGHAUL_KEEPALIVE_SECONDS": "1.5",
            "LONGHAUL_WORKER_CONCURRENCY": str(self.concurrency),
            "LONGHAUL_DATABASE_POOL": "6",
            "LONGHAUL_UNSTORED_RETENTION_SECONDS": "86400",  # the checker compares lines of chat completions with rows
            **({"LONGHAUL_AUTH": "keys", "LONGHAUL_RESERVED_OUTPUT_TOKENS": str(RESERVED_TOKENS)} if self.keys else {}),
        }
