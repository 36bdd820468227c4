"""Where this worker runs, for operators: its systemd unit or its pod, and its devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from config.settings import PROCESS_VARIABLE

CGROUP = Path("/proc/self/cgroup")


def unit(environ: Mapping[str, str] = os.environ, cgroup: Path = CGROUP) -> str | None:
    """What restarts this process: a systemd unit, a pod, or a process of `longhaul up`, by name; None: nobody says."""
    if name := environ.get("POD_NAME"):
        return name
    if "KUBERNETES_SERVICE_HOST" in environ:  # in every pod, whose host name is its own
        return socket.gethostname()
    return environ.get(PROCESS_VARIABLE) or (_service(cgroup) if "INVOCATION_ID" in environ else None)


def devices(environ: Mapping[str, str] = os.environ) -> str | None:
    """The devices that CUDA shows to this process, as `longhaul models` names them; None: all of the machine."""
    return environ.get("CUDA_VISIBLE_DEVICES") or None


def _service(cgroup: Path) -> str | None:
    """The unit whose cgroup this process is in: `0::/system.slice/longhaul-worker@3.service`. In a container, or below
    a terminal, the name tells nothing."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return None
    names = (line.rpartition("/")[2] for line in lines)
    return next((name for name in names if name.endswith(".service") and not name.startswith("user@")), None)
