"""The Procfile under another process manager. `longhaul up` runs its commands, and
tests/integration/local/test_rights.py each of them with services that the environment names."""

from __future__ import annotations

from honcho.environ import parse_procfile

from app.local.procfile import parse
from config.settings import CHECKOUT


def test_honcho_reads_the_commands_that_longhaul_up_reads() -> None:
    text = (CHECKOUT / "Procfile").read_text(encoding="utf-8")
    assert dict(parse_procfile(text).processes) == parse(text)
