"""The acceptance on `longhaul up` with two workers."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.e2e.acceptance.questions import of_demo, scripted
from tests.e2e.acceptance.run import Acceptance, Plan
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

SCRIPTED = """
[[models]]
name = "scripted"
engine = "tests.support.scripted:ScriptedEngine"
tool_parser = "hermes"
[models.engine_args]
tokens_per_second = 400.0
max_num_seqs = 40
"""


def accept(engine: str, lines: int, windowed: int, tell: Callable[[str], None]) -> None:
    """`accept_on` an installation of its own."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(SCRIPTED)
        own = Longhaul(folder / "home", models if engine == "scripted" else None, workers=2)
        with running(own) as installation:
            accept_on(installation, engine, lines, windowed, tell)


def accept_on(installation: Longhaul, engine: str, lines: int, windowed: int, tell: Callable[[str], None]) -> None:
    """Raises AssertionError for what is not as it must be. `engine`: the demo model on vLLM, or the scripted one.

    Two workers run.
    """
    if engine == "demo":
        plan = Plan("longhaul-demo", of_demo(), "Count from 1 to 60.", lines, lines // 4, windowed, cut=lines // 10)
    else:
        plan = Plan("scripted", scripted(), "/count 200", lines, max(lines // 4, 120), windowed, cut=lines // 10)
    before = installation.log.stat().st_size
    with installation.client().with_options(timeout=120) as client:
        Acceptance(client, plan, lambda: installation.named(["celeryd"])[0].kill(), tell).run()
    with installation.log.open(encoding="utf-8", errors="replace") as log:
        log.seek(before)
        again = len(re.findall(r"claimed .*attempt=2", log.read()))
    assert again > 0, "nothing ran on the worker that was killed"
    tell(f"{again} responses of the killed worker went on with another one")
