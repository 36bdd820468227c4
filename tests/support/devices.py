"""A stand-in for the driver: an `nvidia-smi` that prints a list, and an installation with vLLM's build for GPUs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

UUIDS = tuple(f"GPU-{number}c89852c-d268-c3f3-1b07-005d5ae1dc3f" for number in range(8))
MIGS = ("MIG-41b3359c-e721-56e5-8009-12e5797ed514", f"MIG-{UUIDS[1]}/2/0")
"""As drivers name them, and as they did before version 470."""


def listing(count: int) -> str:
    """The list of a machine with `count` GPUs."""
    return "".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: {UUIDS[number]})\n" for number in range(count))


DIVIDED = listing(2) + "".join(
    f"  MIG 3g.40gb     Device  {number}: (UUID: {mig})\n" for number, mig in enumerate(MIGS)
)
"""The list of a machine with two GPUs, of which the second is divided."""


def put_driver(folder: Path, text: str, status: int = 0) -> str:
    """Writes an `nvidia-smi` whose `-L` prints the text; returns the PATH that has it first."""
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$*" = -L ] || exit 64\nprintf %s {shlex.quote(text)}\nexit {status}\n')
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def gpu_machine(folder: Path, text: str) -> dict[str, str]:
    """The environment of a process on a machine with these devices, and with vLLM's build for GPUs by its name."""
    info = folder / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    return {"PATH": put_driver(folder, text), "PYTHONPATH": str(folder)}
