"""docs/settings.md lists the settings of config/settings.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

from config.settings import Settings, variable_of

SETTINGS_PAGE = (Path(__file__).resolve().parents[3] / "docs" / "settings.md").read_text(encoding="utf-8")


def test_the_settings_page_names_every_variable_and_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \| .+ \|$", SETTINGS_PAGE, re.MULTILINE)
    documented = dict(rows)
    assert list(documented) and len(rows) == len(documented)
    assert set(documented) == {variable_of(field) for field in Settings.model_fields}
    for field, info in Settings.model_fields.items():
        if isinstance(info.default, int | float):
            assert json.loads(documented[variable_of(field)].strip("`")) == info.default


def test_the_settings_page_has_the_order_of_the_code() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \|", SETTINGS_PAGE, re.MULTILINE)
    assert documented == [variable_of(field) for field in Settings.model_fields]
