"""What a comparison is to be: cells (mode and concurrency), how often, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.bench.load import Load, Mode

SHORT = "Tell me a story."
SCRIPT = "/say The night train crosses the mountains with forty wagons of apples. "
"""For the scripted engine, which says it again and again where it ignores the end."""
TOKENS = 128
"""Output tokens of each request."""
FIRED = 2000
FIRED_TOKENS = 64
"""Output tokens of each: so few that beginnings and ends are most of the work."""
POSTED = 400
ARRIVALS = (19, 38, 57)
"""Streams that arrive each second: 30, 60 and 90 % of what `vllm serve` takes on two threads of a Xeon."""
ARRIVE_SECONDS = 20
"""How long streams arrive in a round."""
LATE = 64
"""At and above this concurrency fewer requests of each client make a round."""


class Name(StrEnum):
    """Names of the contenders; variants of Longhaul have names of their own."""

    PEER = "vllm serve"
    LONGHAUL = "longhaul"


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    mode: Mode
    concurrency: int
    prompt: str = SHORT
    label: str = ""

    def __str__(self) -> str:
        return self.label or f"{self.mode} {self.concurrency}"

    @classmethod
    def parse(cls, words: str) -> Cell:
        """`MODE CONCURRENCY`, as `str` writes it. Raises ValueError."""
        mode, concurrency = words.split()
        return cls(Mode(mode), int(concurrency))


CELLS = (
    *(Cell(Mode.STREAM, concurrency) for concurrency in (1, 16, 64, 256)),
    Cell(Mode.ENQUEUE, 16),
    Cell(Mode.FIRE, 16),
    *(Cell(Mode.ARRIVE, count) for count in ARRIVALS),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """`length` stretches or shrinks every round."""

    cells: Sequence[Cell] = CELLS
    rounds: int = 5
    length: float = 1.0
    tokens: int = TOKENS
    busy: int = 64
    """Long responses that keep the engine busy while others are enqueued."""
    realtime: bool = True

    @classmethod
    def quick(cls) -> Plan:
        """What the targets are about, and no more."""
        cells = [cell for cell in CELLS if cell.mode is not Mode.ARRIVE or cell.concurrency == ARRIVALS[1]]
        return cls(cells, rounds=3, length=0.5)

    def requests(self, cell: Cell) -> int:
        if cell.mode is Mode.FIRE:
            number = FIRED
        elif cell.mode is Mode.ENQUEUE:
            number = POSTED
        elif cell.mode is Mode.ARRIVE:
            number = cell.concurrency * ARRIVE_SECONDS
        else:
            number = cell.concurrency * (4 if cell.concurrency >= LATE else 6)
        return max(cell.concurrency, round(number * self.length))

    def load(self, cell: Cell) -> Load:
        """The same for all contenders."""
        return Load(
            url="",
            mode=cell.mode,
            concurrency=cell.concurrency,
            requests=self.requests(cell),
            body={
                "max_output_tokens": FIRED_TOKENS if cell.mode is Mode.FIRE else self.tokens,
                "ignore_eos": True,
                "temperature": 0.0,
            },
            prompt=cell.prompt,
            busy=self.busy,
            realtime=self.realtime,
        )
