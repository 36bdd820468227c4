"""Every patch that switches a promise off for the fault suite still finds what it patches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.settings import CHECKOUT
from tests.faults.breaks import SHOWN_BY

pytestmark = pytest.mark.long

BROKEN = Path(__file__).parents[2] / "faults" / "broken"
IMPORT = "import importlib, sitecustomize; [*map(importlib.import_module, sitecustomize.PATCHES[{promise!r}])]"


@pytest.mark.parametrize("promise", SHOWN_BY)
def test_a_promise_can_be_switched_off(promise: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(BROKEN), str(CHECKOUT))), "LONGHAUL_TEST_BREAK": promise}
    argv = (sys.executable, "-c", IMPORT.format(promise=promise))
    done = subprocess.run(argv, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
