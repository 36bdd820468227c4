"""The GPU that is measured: the first that the driver lists and CUDA_VISIBLE_DEVICES allows."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from app.local.errors import LocalError
from app.local.workers.devices import LIST_SECONDS, VISIBLE, Device, visible_devices
from config.settings import ConfigError

NEEDED = "`make bench-gpu` needs an NVIDIA GPU with its driver, and vLLM's build for GPUs"


class NoCard(Exception):
    """There is no GPU to measure; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory: int
    """Bytes."""
    device: Device

    @property
    def environment(self) -> dict[str, str]:
        """Makes it the only GPU of a process, as `longhaul up` does."""
        return {VISIBLE: str(self.device), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def first_card() -> Card:
    """Asks `nvidia-smi` only: neither vLLM nor torch is imported. Raises NoCard."""
    try:
        devices = visible_devices()
    except (LocalError, ConfigError) as error:
        raise NoCard(f"no CUDA device: {error}") from None
    if devices is None or not devices.all:
        raise NoCard(f"no CUDA device: {NEEDED}")
    device = devices.all[0]
    if device.mig is not None:
        raise NoCard(f"GPU {device.index} is divided into MIG devices: {NEEDED}, undivided")
    query = ("nvidia-smi", f"--id={device.gpu}", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=LIST_SECONDS, check=True)
        name, mebibytes = done.stdout.strip().rsplit(", ", 1)
        return Card(name, int(mebibytes) << 20, device)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NoCard(
            f"no CUDA device: nvidia-smi does not say how much memory GPU {device.index} has: {error}"
        ) from None
