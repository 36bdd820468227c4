"""For every test: a clean environment, real services on demand, and no silent skips in CI."""

from __future__ import annotations

import gc
import os
import re
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from tests.support import sharing
from tests.support.installations import longhaul, scripted
from tests.support.services import Services, open_folder

__all__ = ["longhaul", "scripted"]

PREFIXES = ("LONGHAUL_", "FLOWER_", "CELERY_")
VARIABLES = ("DATABASE_URL", "REDIS_URL", "HONCHO_PROCESS_NAME")

for name in list(os.environ):
    if name.startswith(PREFIXES) or name in VARIABLES:
        del os.environ[name]

# vLLM compiles helpers of its sampler with g++ when they are first used: on a fresh machine that takes 40 s of CPU.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

# Tests assert no durations, so hypothesis must not either: the machine may be busy.
settings.register_profile("longhaul", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everything", settings.get_profile("longhaul"))  # tests/clients/test_openapi.py asks for it
settings.load_profile("longhaul")

_started: list[Services] = []


@pytest.fixture(scope="session", autouse=True)
def _certificates_loaded_once() -> Iterator[None]:
    """HTTP clients share the context that trusts certifi's authorities: loading them takes 20 ms, for each client."""
    make, shared = ssl.create_default_context, cache(ssl.create_default_context)

    def context(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        return shared(**kwargs) if kwargs.keys() == {"cafile"} and not args else make(*args, **kwargs)

    with mock.patch("ssl.create_default_context", context):
        yield


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """The session's own Postgres and Valkey."""
    running = Services()
    _started.append(running)
    yield running
    _started.remove(running)
    running.close()


@pytest.fixture(scope="session")
def database_url(services: Services) -> str:
    return services.database_url


@pytest.fixture(scope="session")
def redis_url(services: Services) -> str:
    return services.redis_url


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for `longhaul up`. As root its services run as another user, who cannot read tmp_path."""
    with open_folder() as path:
        yield path


@pytest.fixture(autouse=True)
def _services_stay_up() -> Iterator[None]:
    """Repairs after each test the services that the test broke."""
    yield
    for running in _started:
        running.heal()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files that have no test of this run: clients and models are slow to import.

    For `make test` those are the files that are long as a whole, and for `make test-long` those that do not say so of
    any test.
    """
    wanted = config.getoption("markexpr")
    if wanted not in ("long", "not long") or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if wanted == "long":
        return None if "pytest.mark.long" in text else True
    marks = re.search(r"^pytestmark = .+?\n\n", text, re.DOTALL | re.MULTILINE)
    return True if marks and "pytest.mark.long" in marks[0] else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keeps what collecting has imported out of garbage collections: half a gigabyte, a second of CPU each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that need root without it, and checks that `sharing` knows every file that starts an engine."""
    if os.geteuid() != 0:
        deselected = [item for item in items if item.get_closest_marker("root")]
        items[:] = [item for item in items if item not in deselected]
        config.hook.pytest_deselected(items=deselected)
    for item in items:
        has_an_engine = item.get_closest_marker("vllm") or "longhaul" in getattr(item, "fixturenames", ())
        if has_an_engine and not sharing.has_engines(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} starts an engine: tests/support/sharing.py must know its file")
    if sharing.is_shared(config):
        if "vllm" in sys.modules:
            raise pytest.UsageError("a test file imports vLLM at its top, which takes each process 8 seconds of CPU")
        items.sort(key=lambda item: sharing.turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `pytest --numprocesses`."""
    return sharing.scheduler(config, log)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """For the report of a failure, which parses source code: a finalizer that does so meanwhile would break the parser
    of Python 3.11 (`AST constructor recursion depth mismatch`), and end pytest without the failure's name."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI a skipped test fails with the reason, so that no test is left out unnoticed."""
    with _no_garbage_collected():
        report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and CI=true: {report.longrepr}"
    return report
