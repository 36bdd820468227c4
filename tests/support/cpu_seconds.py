"""What each test and fixture costs in CPU seconds, children included: a plugin for those who make the suite cheaper.

    .venv/bin/python -m pytest -p tests.support.cpu_seconds --numprocesses 3 -m "not long" tests
    .venv/bin/python -m tests.support.cpu_seconds

Each process of pytest-xdist moves into a control group of its own, which its children inherit, also those that
outlive their parents (Postgres). CPU seconds depend less on the hour than a clock's do. Needs root and control groups.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

RECORDS = Path(".pytest_cache/cpu-seconds")
"""One file of JSON lines for each process."""
CGROUPS = Path("/sys/fs/cgroup")
ROWS = 50


class Meter:
    """The CPU time of this process and of all that it starts from now on."""

    def __init__(self) -> None:
        version_1 = CGROUPS / "cpuacct"
        self._group = (version_1 if version_1.exists() else CGROUPS) / f"longhaul-tests-{os.getpid()}"
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        nanoseconds = self._group / "cpuacct.usage"
        if nanoseconds.exists():
            return int(nanoseconds.read_text()) / 1e9
        facts = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        return int(facts["usage_usec"]) / 1e6


class Recorder:
    """Writes a line for each test, its fixtures included, and for each set-up of a fixture."""

    def __init__(self, worker: str) -> None:
        RECORDS.mkdir(parents=True, exist_ok=True)
        self._file = (RECORDS / f"{worker}.jsonl").open("w", encoding="utf-8")
        self._meter = Meter()

    def _write(self, kind: str, name: str, seconds: float) -> None:
        self._file.write(json.dumps([kind, name, round(seconds, 4)]) + "\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        before = self._meter.seconds()
        outcome = yield
        self._write("test", item.nodeid, self._meter.seconds() - before)
        return outcome

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        before = self._meter.seconds()
        value = yield
        self._write("fixture", f"{fixturedef.baseid}::{fixturedef.argname}", self._meter.seconds() - before)
        return value

    def pytest_unconfigure(self) -> None:
        self._write("process", self._file.name, self._meter.seconds())
        self._file.close()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # it shares out, and runs no test
    name = getattr(config, "workerinput", {}).get("workerid", "alone")
    config.pluginmanager.register(Recorder(name))


def _table(title: str, sums: Counter[str], counts: Counter[str], rows: int) -> Iterable[str]:
    yield f"\n| {title} | times | CPU s |\n|---|--:|--:|"
    for name, seconds in sums.most_common(rows):
        yield f"| {name} | {counts[name]} | {seconds:.1f} |"


def tables(records: Iterable[list[Any]]) -> Iterable[str]:
    """Lines of Markdown: the whole, folders, and the dearest tests, files and fixtures."""
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in ("process", "folder", "file", "test", "fixture")}
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in sums}
    for kind, name, seconds in records:
        names = {kind: name}
        if kind == "test":
            file = name.partition("::")[0]
            names |= {"file": file, "folder": str(Path(file).parent)}
        for group, key in names.items():
            sums[group][key] += seconds
            counts[group][key] += 1
    whole, tests = sum(sums["process"].values()), sum(sums["test"].values())
    yield f"{whole:.0f} CPU s, {tests:.0f} of them in {sum(counts['test'].values())} tests"
    for kind, title in (("folder", "folder"), ("file", "file"), ("test", "test"), ("fixture", "fixture")):
        yield from _table(title, sums[kind], counts[kind], ROWS)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    found = (json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.open(encoding="utf-8"))
    sys.stdout.write("\n".join(tables(found)) + "\n")
