"""The PAGE's picture of the states says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from app.protocol.status import FINAL, TRANSITIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_of_the_states_is_the_transition_table() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", PAGE, re.MULTILINE))
    table = {
        (source.value, transition.target.value, name)
        for name, transition in TRANSITIONS.items()
        for source in transition.sources
    }
    assert drawn == table
    assert set(re.findall(r"^    (\w+) --> \[\*\]$", PAGE, re.MULTILINE)) == {status.value for status in FINAL}
