"""Where the model runs without an accelerator, and on how many cores."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.engine.cases import demo_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),  # vLLM's own, at import
    pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="about machines without an accelerator"),
]


def args_of(**given: Any) -> Any:
    from workers.engine.vllm.arguments import engine_args

    model = demo_model()
    return engine_args(replace(model, engine_args={**model.engine_args, **given}))


def test_without_an_accelerator_the_model_runs_in_engine_core() -> None:
    from vllm.v1.executor import Executor

    from workers.engine.vllm.compat.configuration import config_of
    from workers.engine.vllm.compat.processes import InCore

    assert Executor.get_class(config_of(args_of())) is InCore


@pytest.mark.parametrize("given", [{"distributed_executor_backend": "mp"}, {"tensor_parallel_size": 2}])
def test_a_model_that_asks_for_another_executor_gets_it(given: dict[str, Any]) -> None:
    assert args_of(**given).distributed_executor_backend in (None, "mp")


@pytest.mark.parametrize("variable", ["VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"])
def test_an_operator_who_assigned_the_cores_gets_vllms_own_executor(variable: str) -> None:
    with mock.patch.dict(os.environ, {variable: "0"}):
        assert args_of().distributed_executor_backend is None


@pytest.mark.parametrize(("cores", "siblings", "threads"), [(1, 1, "1"), (2, 1, "1"), (8, 1, "7"), (8, 2, "7")])
def test_the_model_computes_on_all_cores_but_one(cores: int, siblings: int, threads: str) -> None:
    from vllm.utils.cpu_resource_utils import LogicalCPUInfo

    from workers.engine.vllm import cpu_executor
    from workers.engine.vllm.compat import machine

    cpus = [LogicalCPUInfo(core + cores * thread, core, 0) for core in range(cores) for thread in range(siblings)]
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(machine, "get_allowed_cpu_list", return_value=cpus),
    ):
        os.environ.pop("OMP_NUM_THREADS", None)
        with cpu_executor.compute_threads(args_of()):
            assert os.environ["OMP_NUM_THREADS"] == threads
        assert "OMP_NUM_THREADS" not in os.environ


def test_a_number_of_threads_that_the_operator_set_stays() -> None:
    from workers.engine.vllm.cpu_executor import compute_threads

    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "3"}), compute_threads(args_of()):
        assert os.environ["OMP_NUM_THREADS"] == "3"
