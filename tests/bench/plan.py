"""What a comparison is to be: cells (mode, concurrency, prompt), how often, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.bench.load import Load, Mode
from tests.bench.prompts import Prompt, text_of

TOKENS = 128
"""Output tokens of each request."""
ASKING = (Mode.STREAM, Mode.SYNC, Mode.BACKGROUND_STREAM, Mode.BACKGROUND_POLL)
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

    BARE = "bare"
    """As vLLM comes."""
    CORE = "bare in core"
    """With the model where Longhaul has it on such a machine (`workers/engine/vllm/cores.py`)."""
    PEER = "vllm serve"
    LONGHAUL = "longhaul"


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    mode: Mode
    concurrency: int
    prompt: Prompt = Prompt.SHORT
    label: str = ""
    tokens: int | None = None
    """Output tokens of each request; None: the plan's."""

    def __str__(self) -> str:
        words = [self.mode.value, str(self.concurrency), *([] if self.prompt is Prompt.SHORT else [self.prompt.value])]
        return self.label or " ".join(words)

    @classmethod
    def parse(cls, words: str) -> Cell:
        """`MODE CONCURRENCY [PROMPT]`, as `str` writes it. Raises ValueError."""
        mode, concurrency, *prompt = words.split()
        return cls(Mode(mode), int(concurrency), Prompt(*prompt) if prompt else Prompt.SHORT)


@dataclass(frozen=True, slots=True)
class Plan:
    """`length` stretches or shrinks every round."""

    cells: Sequence[Cell]
    rounds: int = 5
    length: float = 1.0
    tokens: int = TOKENS
    busy: int = 64
    """Long responses that keep the engine busy while others are enqueued."""
    realtime: bool = True

    @classmethod
    def full(cls) -> Plan:
        short = [Cell(mode, concurrency) for mode in ASKING for concurrency in (1, 16, 64, 256)]
        long = [Cell(mode, concurrency, Prompt.LONG) for mode in ASKING for concurrency in (1, 16, 64)]
        arriving = [Cell(Mode.ARRIVE, count) for count in ARRIVALS]
        return cls((*short, *long, Cell(Mode.ENQUEUE, 1), Cell(Mode.ENQUEUE, 16), Cell(Mode.FIRE, 16), *arriving))

    @classmethod
    def quick(cls) -> Plan:
        """What the targets are about, and no more."""
        streams = [Cell(Mode.STREAM, concurrency) for concurrency in (1, 16, 64, 256)]
        others = [Cell(Mode.ENQUEUE, 16), Cell(Mode.FIRE, 16), Cell(Mode.ARRIVE, ARRIVALS[1])]
        return cls((*streams, *others), rounds=3, length=0.5)

    def requests(self, cell: Cell) -> int:
        if cell.mode is Mode.FIRE:
            number = FIRED
        elif cell.mode is Mode.ENQUEUE:
            number = POSTED
        elif cell.mode is Mode.ARRIVE:
            number = cell.concurrency * ARRIVE_SECONDS
        else:
            number = cell.concurrency * (4 if cell.concurrency >= LATE else 6)
            number //= 2 if cell.prompt is Prompt.LONG and cell.concurrency > 1 else 1
        return max(cell.concurrency, round(number * self.length))

    def load(self, cell: Cell, round_number: int) -> Load:
        """The same load for all contenders of a round, and another in the next round, because prefixes are cached."""
        return Load(
            url="",
            mode=cell.mode,
            concurrency=cell.concurrency,
            requests=self.requests(cell),
            body={"max_output_tokens": self._tokens(cell), "ignore_eos": True, "temperature": 0.0},
            prompt=text_of(cell.prompt, round_number),
            busy=self.busy,
            realtime=self.realtime,
        )

    def _tokens(self, cell: Cell) -> int:
        return cell.tokens or (FIRED_TOKENS if cell.mode is Mode.FIRE else self.tokens)
