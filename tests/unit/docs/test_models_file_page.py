"""docs/models-file.md lists the keys of config/models.py and config/tools.py."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from pydantic import BaseModel

from config.models import _AdapterEntry, _Entry, _File
from config.process import CHECKOUT
from config.tools import ToolServerEntry

PAGE = (CHECKOUT / "docs" / "models-file.md").read_text(encoding="utf-8")
TABLES: dict[str, type[BaseModel]] = {
    "models": _Entry,
    "models.adapters": _AdapterEntry,
    "tool_servers": ToolServerEntry,
}


def rows(table: str) -> dict[str, str]:
    """The defaults of a table's keys, in the page's order."""
    (section,) = re.findall(
        rf"^## [^\n]*`\[\[{re.escape(table)}\]\]`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    return dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE))


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_every_key_in_the_order_of_the_code(table: str) -> None:
    assert list(rows(table)) == list(TABLES[table].model_fields)


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_the_defaults_of_the_code(table: str) -> None:
    for key, info in TABLES[table].model_fields.items():
        said = rows(table)[key]
        if info.is_required():
            assert said == "required", key
        elif info.default not in (None, ""):
            assert _value(said) == info.default, key
        else:
            assert not re.fullmatch("`[^`]*`", said) or said == "`model.NAME`", key


def test_every_table_of_the_file_has_its_section() -> None:
    assert set(_File.model_fields) == {table for table in TABLES if "." not in table}


def test_the_example_of_the_page_is_valid() -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    parsed: BaseModel = _File.model_validate(tomllib.loads(example))
    assert parsed


def _value(said: str) -> Any:
    return tomllib.loads(f"value = {said.strip('`')}")["value"]
