"""Which devices there are: the driver's list, what CUDA_VISIBLE_DEVICES leaves of it, and how many an engine takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.local.errors import LocalError
from app.local.workers import devices
from app.local.workers.devices import Device, devices_needed, parse_list, visible_devices
from config.settings import ConfigError
from tests.support.devices import DIVIDED, MIGS, UUIDS, listing, put_driver
from tests.support.scripted import SCRIPTED
from tests.support.upping import served


@pytest.fixture(autouse=True)
def _gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vLLM's build for GPUs were installed; the tests' own is the one for CPUs."""
    monkeypatch.setattr(devices, "version", lambda _: "0.32.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs."""
    monkeypatch.setenv("PATH", put_driver(tmp_path, listing(4)))


@pytest.fixture
def divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, of which the second is divided."""
    monkeypatch.setenv("PATH", put_driver(tmp_path, DIVIDED))


def names() -> list[str]:
    found = visible_devices()
    assert found is not None
    return [str(device) for device in found.all]


def test_the_driver_s_list_is_read() -> None:
    assert list(parse_list(listing(2))) == [Device(0, UUIDS[0]), Device(1, UUIDS[1])]
    assert list(parse_list("No devices were found\n")) == []


def test_a_divided_gpu_is_its_parts_also_as_older_drivers_name_them() -> None:
    assert list(parse_list(DIVIDED)) == [Device(0, UUIDS[0]), *(Device(1, UUIDS[1], mig) for mig in MIGS)]


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("2", ["2"]),
        ("3, 1", ["3", "1"]),
        (UUIDS[2], ["2"]),
        (f"{UUIDS[3][:12]},0", ["3", "0"]),
        ("", []),
        ("-1", []),
        ("2,-1,1", ["2"]),
    ],
)
def test_cuda_visible_devices_is_obeyed_in_its_order(
    monkeypatch: pytest.MonkeyPatch, value: str, left: list[str]
) -> None:
    assert names() == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert names() == left


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize(
    ("value", "left"), [(MIGS[1], [MIGS[1]]), ("1", list(MIGS)), (UUIDS[1], list(MIGS)), ("0", ["0"])]
)
def test_parts_of_a_gpu_are_named_by_their_uuids_or_all_by_the_gpu(
    monkeypatch: pytest.MonkeyPatch, value: str, left: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert names() == left


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("4", "there is no device '4' (nvidia-smi -L lists 0, 1, 2, 3)"),
        ("GPU-ffff", "there is no device 'GPU-ffff' (nvidia-smi -L lists 0, 1, 2, 3)"),
        ("GPU-", "names several devices by 'GPU-' (nvidia-smi -L lists 0, 1, 2, 3)"),
        ("all", "there is no device 'all' (nvidia-smi -L lists 0, 1, 2, 3)"),
        (f"1,{UUIDS[1]}", f"'{UUIDS[1]}' names a device a second time"),
    ],
)
def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, value: str, complaint: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(ConfigError) as caught:
        visible_devices()
    assert str(caught.value) == f"CUDA_VISIBLE_DEVICES: {complaint}"


def test_without_a_driver_there_is_nothing_to_share_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_devices() is None


@pytest.mark.usefixtures("four")
def test_vllm_s_build_for_cpus_takes_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "version", lambda _: "0.32.0+cpu")
    assert visible_devices() is None


def test_a_driver_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", put_driver(tmp_path, "NVIDIA-SMI has failed.\nMake sure.\n", status=9))
    with pytest.raises(LocalError, match=r"^nvidia-smi -L ended with status 9: NVIDIA-SMI has failed\.$"):
        visible_devices()


@pytest.mark.parametrize(
    ("args", "needed"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4}, 4),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}, 8),
        ({"tensor_parallel_size": "4"}, 1),  # The worker refuses it.
        ({"tensor_parallel_size": 16, "distributed_executor_backend": "ray"}, 0),
    ],
)
def test_an_engine_takes_as_many_devices_as_its_sizes_say(args: dict[str, Any], needed: int) -> None:
    assert devices_needed(served("m", **args)) == needed


def test_a_scripted_engine_takes_none() -> None:
    assert devices_needed(served("m", engine=SCRIPTED)) == 0
