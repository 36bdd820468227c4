"""The README's pictures and tables say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

from app.protocol.status import FINAL, TRANSITIONS
from config.settings import Settings, variable_of

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_picture_of_the_states_is_the_transition_table() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", README, re.MULTILINE))
    table = {
        (source.value, transition.target.value, name)
        for name, transition in TRANSITIONS.items()
        for source in transition.sources
    }
    assert drawn == table
    assert set(re.findall(r"^    (\w+) --> \[\*\]$", README, re.MULTILINE)) == {status.value for status in FINAL}


def test_the_table_of_settings_names_every_variable_and_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \| .+ \|$", README, re.MULTILINE)
    documented = dict(rows)
    assert list(documented) and len(rows) == len(documented)
    assert set(documented) == {variable_of(field) for field in Settings.model_fields}
    for field, info in Settings.model_fields.items():
        if isinstance(info.default, int | float):
            assert json.loads(documented[variable_of(field)].strip("`")) == info.default
