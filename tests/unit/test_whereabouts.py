"""What a worker says of where it runs."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname

import pytest

from config.settings import PROCESS_VARIABLE
from workers import whereabouts

SYSTEMD = {"INVOCATION_ID": "0" * 32}
UNIT = "0::/system.slice/system-longhaul\\x2dworker.slice/longhaul-worker@3.service\n"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environ", "cgroup", "unit"),
    [
        (SYSTEMD, UNIT, "longhaul-worker@3.service"),
        (SYSTEMD, f"1:name=systemd:/init.scope\n{UNIT}", "longhaul-worker@3.service"),
        (SYSTEMD, "0::/user.slice/user@1000.service/app.slice/terminal.scope\n", None),
        (SYSTEMD, "0::/user.slice/user-1000.slice/user@1000.service\n", None),
        ({}, UNIT, None),
        (SYSTEMD, "0::/\n", None),
        (POD, UNIT, gethostname()),
        ({**POD, "POD_NAME": "longhaul-worker-abc"}, "", "longhaul-worker-abc"),
        ({**SYSTEMD, PROCESS_VARIABLE: "worker.2"}, UNIT, "worker.2"),
    ],
)
def test_a_worker_names_what_restarts_it(
    environ: dict[str, str], cgroup: str, unit: str | None, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    assert whereabouts.unit(environ, tmp_path / "cgroup") == unit


def test_a_system_without_control_groups_names_no_unit(tmp_path: Path) -> None:
    assert whereabouts.unit(SYSTEMD, tmp_path / "none") is None


@pytest.mark.parametrize(("value", "devices"), [("2,3", "2,3"), ("", None), (None, None)])
def test_a_worker_names_its_devices_as_cuda_does(value: str | None, devices: str | None) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert whereabouts.devices(environ) == devices
