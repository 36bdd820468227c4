"""The parameters of a run: sizes, rates, and the seed of all random choices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LEASE_SECONDS = 3.0
RESERVED_TOKENS = 1000
"""Output tokens that a request reserves. Some answers are longer: they are charged for more than they reserved."""
WHOLE_SECONDS = 90.0
"""How long processes may take to be ready again."""
CHAINED = 0.15
"""The share of requests that continue another."""
MODEL = "scripted"

MODELS = f"""
[[models]]
name = "{MODEL}"
engine = "tests.support.scripted.attached:AttachedEngine"
reasoning_parser = "marks"
tool_parser = "marks"
[models.engine_args]
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
    servers: int = 0
    """How many of the workers drive a server of their own (tests/support/scripted/server.py)."""
    flower: bool = True
    kinds: frozenset[str] | None = None
    """Names of the kinds of faults to inflict, each as often as the others; None: all, by their weights."""
    in_turn: bool = False
    """Inflict the kinds in turn, one at a time, each on a worker that is running responses.

    By default the seed chooses the kinds, and faults overlap.
    """
    broken: tuple[str, ...] = ()
    """The promises to switch off (`breaks`)."""
    tokens_per_second: float = 100.0
    tokens_per_delta: int = 4
    concurrency: int = 64
    """Maximum of responses that one worker runs at a time."""
    logs: Path | None = None
    """Where to keep the logs of the processes; None: they are deleted with the fleet."""
    settle_seconds: float = 90.0
    """How long responses may take to end once all processes and services run again."""
    keys: bool = False
    """Ask for API keys: clients belong to two projects with limits, and what they use is compared with the ledger."""
    standby: bool = False
    """Run Postgres with a synchronous standby, and fail over to it now and then."""
    upgrade: bool = False
    """Upgrade from this version to the next one (tests/support/next_version.py) in the middle of the run."""

    @property
    def models(self) -> str:
        """The text of the run's models file."""
        return MODELS + "\n".join(f"{name} = {value}" for name, value in self.engine_args.items())

    @property
    def engine_args(self) -> dict[str, float]:
        return {"tokens_per_second": self.tokens_per_second, "tokens_per_delta": self.tokens_per_delta}

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables of every process, besides addresses."""
        return {
            "LONGHAUL_MODEL": MODEL,
            "LONGHAUL_LEASE_SECONDS": str(LEASE_SECONDS),
            "LONGHAUL_MAX_CRASHES": "100",
            "LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0.5",
            "LONGHAUL_API_GRACE_SECONDS": "0.5",
            "LONGHAUL_KEEPALIVE_SECONDS": "1.5",
            "LONGHAUL_WORKER_CONCURRENCY": str(self.concurrency),
            "LONGHAUL_DATABASE_POOL": "6",
            "LONGHAUL_UNSTORED_RETENTION_SECONDS": "86400",  # the checker compares lines of chat completions with rows
            **({"LONGHAUL_AUTH": "keys", "LONGHAUL_RESERVED_OUTPUT_TOKENS": str(RESERVED_TOKENS)} if self.keys else {}),
        }
