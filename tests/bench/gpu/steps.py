"""What is measured on a GPU, as a list of steps that needs none: which contender does what, in which order.

One engine runs at a time, because two of them seldom fit into one GPU. So a contender is started for a round, takes all
its steps one after the other, and ends; the order of the contenders changes with the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.contenders.models import Served
from tests.bench.gpu.shapes import SHAPES, Shape
from tests.bench.load import Mode
from tests.bench.plan import FIRED_TOKENS, Cell, Name
from tests.bench.rounds import rotated

CONTENDERS = (Name.BARE, Name.PEER, Name.LONGHAUL)
STREAMS = tuple(Cell(Mode.STREAM, concurrency, tokens=128) for concurrency in (1, 64, 256, 512))
BACKGROUND = Cell(Mode.FIRE, 16, label=f"background, {FIRED_TOKENS} tokens", tokens=FIRED_TOKENS)
TAKEOVER = Cell(Mode.BACKGROUND_STREAM, 64, label="takeover", tokens=1024)
"""Of Longhaul alone, in its last round: what the others generate ends with their process."""
ABLE = {BACKGROUND: CONTENDERS[1:], TAKEOVER: CONTENDERS[2:]}
"""Who does what not all contenders do."""

PROMPT_TOKENS = 128
"""More than a prompt has."""
RESERVED_BYTES = 6 * 10**9
"""For CUDA, activations, CUDA graphs, and for what kernels pad the experts with."""
BATCHED_TOKENS = 8192
"""`vllm serve` has other defaults than AsyncLLM."""


@dataclass(frozen=True, slots=True)
class Step:
    shape: Shape
    contender: Name
    round: int
    cell: Cell


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """`left_out` says what is not measured, and why: a sentence each."""

    memory: int
    steps: Sequence[Step]
    left_out: Sequence[str]

    def served(self, shape: Shape, path: str) -> Served:
        """The model in the folder `path`, with room for the largest step of its shape: the same for all contenders."""
        cells = {step.cell for step in self.steps if step.shape is shape}
        kv_bytes = max(_kv_bytes(shape, cell) for cell in cells)
        args = {
            "load_format": "dummy",
            "dtype": "bfloat16",
            "kv_cache_memory_bytes": kv_bytes,
            # vLLM does not start if less is free; the size of the KV cache is set above.
            "gpu_memory_utilization": round((shape.weight_bytes + kv_bytes) / self.memory, 3),
            "max_num_seqs": max(cell.concurrency for cell in cells),
            "max_num_batched_tokens": BATCHED_TOKENS,
            "scheduling_policy": "priority",
            **shape.engine_args,
        }
        context_length = max(_context_length(cell) for cell in cells)
        return Served(
            path=path, context_length=context_length, engine_args=args, reasoning_parser=shape.reasoning_parser
        )


def planned(memory: int, rounds: int, shapes: Sequence[Shape] = SHAPES) -> GpuPlan:
    """The steps on a GPU with so many bytes, as far as weights and KV cache fit."""
    steps: list[Step] = []
    left_out: list[str] = []
    for shape in shapes:
        cells = [cell for cell in (*STREAMS, BACKGROUND, TAKEOVER) if _needed(shape, cell) <= memory]
        left_out += [_why(shape, cell, memory) for cell in (*STREAMS, BACKGROUND, TAKEOVER) if cell not in cells]
        for number in range(rounds):
            for contender in rotated(CONTENDERS, number):
                mine = [cell for cell in cells if contender in ABLE.get(cell, CONTENDERS)]
                due = [cell for cell in mine if cell is not TAKEOVER or number == rounds - 1]
                steps += [Step(shape, contender, number, cell) for cell in due]
    return GpuPlan(memory, steps, left_out)


def _context_length(cell: Cell) -> int:
    assert cell.tokens is not None
    return PROMPT_TOKENS + cell.tokens


def _kv_bytes(shape: Shape, cell: Cell) -> int:
    return shape.kv_bytes(cell.concurrency * _context_length(cell))


def _needed(shape: Shape, cell: Cell) -> int:
    return shape.weight_bytes + _kv_bytes(shape, cell) + RESERVED_BYTES


def _why(shape: Shape, cell: Cell, memory: int) -> str:
    parts = f"{_gb(shape.weight_bytes)} of weights, {_gb(_kv_bytes(shape, cell))} of KV cache and"
    needed = f"{_gb(RESERVED_BYTES)} for the rest are {_gb(_needed(shape, cell))}"
    return f"{shape.name}, {cell}: left out, because {parts} {needed}, and the GPU has {_gb(memory)}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
