"""How `make test` shares the tests out to processes: by files, and all that start an engine to one process.

vLLM keeps a core busy for each of its processes: two engines at once would starve each other, and everybody else.
The process with the engines works longest, so tests of clients with the scripted engine go to another one. Files that
share an installation go to one process: each start of one takes 10 seconds of CPU.
pytest-xdist's own groups (`--dist loadgroup`) travel in the node ids, which pytest 9 does not let it change.
"""

from __future__ import annotations

from typing import Any

import pytest

ENGINES = (
    "tests/e2e/test_main_job.py",
    "tests/e2e/test_messages.py",
    "tests/e2e/test_attached.py",
    "tests/e2e/test_chat_peer.py",
    "tests/e2e/test_gpt_oss.py",
    "tests/e2e/test_images.py",
    "tests/e2e/test_ranks.py",
    "tests/engine/",
    "tests/bench/",  # would refuse to measure beside an engine
)
CLIENTS = "tests/clients/"
DEMO = "demo"
"""The parameter of a client's test that runs with the demo model."""
OTHERS = ("tests/faults/", "tests/attacks/", "tests/e2e/", "tests/integration/", "tests/toolservers/")
LONGEST_FIRST = (*ENGINES, CLIENTS, *OTHERS)
"""So that the last files to be shared out are short ones. What is not named comes behind."""
PAIR = frozenset(
    f"tests/e2e/test_{name}.py"
    for name in ("batches", "draining", "keys", "metrics", "operators_hour", "tools", "two_workers", "webhooks")
)
"""The files that share the fixture `pair` of `tests/e2e/conftest.py`."""


def has_engines(nodeid: str) -> bool:
    if nodeid.startswith(CLIENTS):
        return DEMO in nodeid.partition("[")[2].removesuffix("]").split("-")
    return nodeid.startswith(ENGINES)


def turn(nodeid: str) -> int:
    """Where a test stands in the order; within one turn as pytest has them."""
    places = (place for place, beginning in enumerate(LONGEST_FIRST) if nodeid.startswith(beginning))
    return next(places, len(LONGEST_FIRST))


def group(nodeid: str) -> str:
    """Tests of one group go to one process."""
    if has_engines(nodeid):
        return "engines"
    file = nodeid.partition("::")[0]
    if file.startswith(CLIENTS):
        return "clients"
    return "pair" if file in PAIR else file


def is_shared(config: pytest.Config) -> bool:
    """Whether this is one of several processes."""
    return hasattr(config, "workerinput")


def scheduler(config: pytest.Config, log: Any) -> Any:
    """pytest-xdist's scheduler for `--numprocesses`."""
    from xdist.scheduler import LoadScopeScheduling  # whoever runs tests one by one needs no xdist

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByFile(config, log)
