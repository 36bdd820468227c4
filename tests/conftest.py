"""For every test: a clean environment, real services on demand, and no silent skips in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import sharing
from tests.support.installations import longhaul, scripted
from tests.support.services import Services, open_folder

__all__ = ["longhaul", "scripted"]

OURS = ("LONGHAUL_", "FLOWER_", "CELERY_")
ALSO_OURS = ("DATABASE_URL", "REDIS_URL", "HONCHO_PROCESS_NAME")

for name in list(os.environ):
    if name.startswith(OURS) or name in ALSO_OURS:
        del os.environ[name]

# No timing asserts, not even hypothesis' own: the machine may be busy.
settings.register_profile("longhaul", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("longhaul")

_started: list[Services] = []


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """A Postgres and a Valkey of the session's own."""
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
    """For a `longhaul up`: as root its services' user must reach it, and would not reach tmp_path."""
    with open_folder() as path:
        yield path


@pytest.fixture(autouse=True)
def _services_stay_up() -> Iterator[None]:
    """A test may break a service; the next one finds it whole."""
    yield
    for running in _started:
        running.heal()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests about root are no tests for anyone else; and all that start an engine are known to `sharing`."""
    if os.geteuid() != 0:
        left_out = [item for item in items if item.get_closest_marker("root")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        has_an_engine = item.get_closest_marker("vllm") or "longhaul" in getattr(item, "fixturenames", ())
        if has_an_engine and not sharing.has_engines(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} starts an engine: tests/support/sharing.py must know its file")
    if sharing.is_shared(config):
        items.sort(key=lambda item: sharing.turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `pytest --numprocesses`."""
    return sharing.scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI a test that cannot run is a failure with the reason, not a skip that nobody sees."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and CI=true: {report.longrepr}"
    return report
