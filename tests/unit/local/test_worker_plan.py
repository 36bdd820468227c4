"""Which workers `longhaul up` runs: their names, and which devices each has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.local.workers.devices import Device, Devices
from app.local.workers.plan import PlannedWorker, plan
from config.models import VLLM_SERVER, ServedModel, Upstream
from config.settings import ConfigError
from tests.support.scripted import SCRIPTED
from tests.support.upping import served

FOUR = Devices(tuple(Device(number, f"GPU-{number}") for number in range(4)))
MIXED = Devices((Device(0, "GPU-0"), Device(1, "GPU-1", "MIG-a"), Device(1, "GPU-1", "MIG-b"), Device(2, "GPU-2")))


def big(name: str, size: int) -> ServedModel:
    return served(name, tensor_parallel_size=size)


def names(models: list[ServedModel], count: int) -> list[str]:
    return [worker.name for worker in plan(models, count, None)]


def shares(workers: list[PlannedWorker]) -> dict[str, str]:
    return {worker.name: worker.device_names for worker in workers}


def test_workers_have_the_shortest_distinct_names() -> None:
    m, n, other = served("x/m"), served("Org/Big Model"), served("y/m")
    assert names([m], 1) == ["worker"]
    assert names([m], 2) == ["worker.1", "worker.2"]
    assert names([n, m], 1) == ["worker.big-model", "worker.m"]
    assert names([m, other], 2) == ["worker.x-m.1", "worker.x-m.2", "worker.y-m.1", "worker.y-m.2"]


def test_a_worker_s_environment_names_its_model_and_devices_in_the_driver_s_order() -> None:
    (worker,) = plan([big("m", 2)], 1, FOUR)
    assert dict(worker.process("run").env) == {
        "LONGHAUL_MODEL": "m",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_what_uses_no_device_is_given_none() -> None:
    scripted = served("s", engine=SCRIPTED)
    assert [dict(worker.process("run").env) for worker in plan([scripted], 1, FOUR)] == [{"LONGHAUL_MODEL": "s"}]
    assert [dict(worker.process("run").env) for worker in plan([big("m", 8)], 1, None)] == [{"LONGHAUL_MODEL": "m"}]


def test_parts_of_a_gpu_serve_small_models_and_whole_gpus_the_large_ones() -> None:
    workers = plan([served("a"), served("b"), big("large", 2)], 1, MIXED)
    assert shares(workers) == {"worker.a": "MIG-a", "worker.b": "MIG-b", "worker.large": "0,2"}


@pytest.mark.parametrize(
    ("models", "count", "devices", "message"),
    [
        (
            [big("a", 2), served("b")],
            2,
            FOUR,
            "the workers need 6 devices, and nvidia-smi lists 4: 'a' 2 for each of its 2 workers, 'b' 1 for each of "
            "its 2 workers; lower --workers or tensor_parallel_size, or serve fewer models",
        ),
        (
            [served("a")],
            1,
            Devices((), "CUDA_VISIBLE_DEVICES names"),
            "the workers need 1 device, and CUDA_VISIBLE_DEVICES names 0: 'a' 1; lower --workers or "
            "tensor_parallel_size, or serve fewer models, or name more devices in CUDA_VISIBLE_DEVICES",
        ),
        (
            [big("a", 3)],
            1,
            MIXED,
            "the workers need 3 devices, and nvidia-smi lists 4 (an engine with several takes whole GPUs): 'a' 3; "
            "lower --workers or tensor_parallel_size, or serve fewer models",
        ),
    ],
)
def test_what_does_not_fit_is_one_error_that_names_models_needs_and_devices(
    models: list[ServedModel], count: int, devices: Devices, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(models, count, devices)
    assert str(caught.value) == message


def test_device_ids_of_a_model_are_refused_where_devices_are_shared_out() -> None:
    chosen = served("m", device_ids=[3])
    assert plan([chosen], 1, None)
    with pytest.raises(ConfigError, match="model 'm': engine_args: device_ids is for a worker alone"):
        plan([chosen], 1, FOUR)


def test_running_workers_stay_as_they_are_and_a_model_that_is_added_gets_what_is_free() -> None:
    a, b = served("a"), big("b", 2)
    running = plan([a], 1, FOUR)
    both = plan([b, a], 1, FOUR, running)
    assert shares(both) == {"worker.b": "1,2", "worker": "0"}
    assert running[0] in both


def test_a_model_that_is_gone_or_changed_frees_its_devices() -> None:
    running = plan([big("a", 2), served("b")], 1, FOUR)
    assert shares(plan([big("a", 3), served("b")], 1, FOUR, running)) == {"worker.a": "0,1,3", "worker.b": "2"}
    assert shares(plan([big("c", 3), served("b")], 1, FOUR, running)) == {"worker.c": "0,1,3", "worker.b": "2"}


def test_each_server_elsewhere_has_a_worker_and_no_device() -> None:
    model = replace(served("m", engine=VLLM_SERVER), upstream=Upstream(("http://a:1", "http://b:1")))
    found = [dict(worker.process("run").env) for worker in plan([model], 2, FOUR)]
    urls = ["http://a:1", "http://b:1"] * 2
    assert found == [{"LONGHAUL_MODEL": "m", "LONGHAUL_UPSTREAM": url} for url in urls]
    assert names([model], 1) == ["worker.1", "worker.2"]


def test_each_worker_has_devices_of_its_own() -> None:
    workers = plan([served("a"), big("b", 2)], 1, FOUR)
    assert shares(workers) == {"worker.a": "2", "worker.b": "0,1"}
    assert shares(plan([served("a")], 4, FOUR)) == {f"worker.{number}": str(number - 1) for number in range(1, 5)}
