"""Where this worker runs, for operators: its systemd unit or its pod, its devices, its version."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.settings import PROCESS_VARIABLE
from config.version import VERSION

CGROUP = Path("/proc/self/cgroup")
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What an operator needs to find a worker's process and its device."""

    unit: str | None
    """What restarts the process: a systemd unit, a pod, or a process of `longhaul up`, by name; None: nobody says."""
    devices: str | None
    """The devices that CUDA shows to it, as `longhaul models` names them; None: all of the machine."""
    version: str


def whereabouts(environ: Mapping[str, str] = os.environ, cgroup: Path = CGROUP) -> Whereabouts:
    return Whereabouts(_unit(environ, cgroup), environ.get(VISIBLE_DEVICES) or None, VERSION)


def _unit(environ: Mapping[str, str], cgroup: Path) -> str | None:
    if name := environ.get("POD_NAME"):
        return name
    if "KUBERNETES_SERVICE_HOST" in environ:  # in every pod, whose host name is its own
        return socket.gethostname()
    return environ.get(PROCESS_VARIABLE) or (_service(cgroup) if "INVOCATION_ID" in environ else None)


def _service(cgroup: Path) -> str | None:
    """The unit whose cgroup this process is in: `0::/system.slice/longhaul-worker@3.service`. In a container, or below
    a terminal, the name tells nothing."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return None
    names = (line.rpartition("/")[2] for line in lines)
    return next((name for name in names if name.endswith(".service") and not name.startswith("user@")), None)
