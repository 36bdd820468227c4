"""What single pages say is what the code does, and what was measured."""

from __future__ import annotations

import json
import re
from collections import Counter
from xml.etree import ElementTree

from app.local.welcome import welcome
from app.protocol.status import FINAL, TRANSITIONS
from config.process import CHECKOUT
from config.settings import Settings, variable_of
from tests.picture import NBSP, PICTURE

MAX_MODULES = 15


def page(name: str) -> str:
    return (CHECKOUT / name).read_text(encoding="utf-8")


def test_the_picture_of_the_states_is_the_transition_table() -> None:
    architecture = page("docs/internals/architecture.md")
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", architecture, re.MULTILINE))
    assert drawn == {
        (source.value, transition.target.value, name)
        for name, transition in TRANSITIONS.items()
        for source in transition.sources
    }
    assert set(re.findall(r"^    (\w+) --> \[\*\]$", architecture, re.MULTILINE)) == {each.value for each in FINAL}


def test_no_word_of_the_glossary_has_two_definitions() -> None:
    cells = re.findall(r"^\| ([^|]+?)(?: \*)? \| (?!means \|)", page("docs/internals/glossary.md"), re.MULTILINE)
    counts = Counter(word.casefold() for cell in cells for word in cell.split(", "))
    assert len(counts) > 50
    assert [word for word, count in counts.items() if count > 1] == []


def test_every_measured_row_of_the_pages_for_users_is_in_a_table_of_the_internals() -> None:
    for name in ("performance.md", "scaling.md"):
        parts = re.findall("<!-- measured -->(.*?)<!-- /measured -->", page(f"docs/{name}"), re.DOTALL)
        rows = [row for part in parts for row in table_rows(part)]
        assert len(rows) > 3, name
        measured = table_rows(page(f"docs/internals/{name}"))
        assert [row for row in rows if not any(row <= each for each in measured)] == [], name


def table_rows(text: str) -> list[set[str]]:
    """The cells of each row of a text's tables; lines between head and body have no letters."""
    return [set(re.split(r" ?\| ?", line.strip("| "))) for line in text.splitlines() if re.match(r"\| \w", line)]


def test_a_package_has_no_more_modules_than_a_reader_holds_in_mind() -> None:
    for top in ("app", "config", "workers"):
        for package in (path.parent for path in (CHECKOUT / top).rglob("__init__.py")):
            assert len(list(package.glob("*.py"))) - 1 <= MAX_MODULES, package


def test_the_settings_page_has_every_variable_in_the_order_of_the_code_and_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \| .+ \|$", page("docs/settings.md"), re.MULTILINE)
    assert [name for name, _ in rows] == [variable_of(field) for field in Settings.model_fields]
    for (name, default), info in zip(rows, Settings.model_fields.values(), strict=True):
        if isinstance(info.default, int | float):
            assert json.loads(default.strip("`")) == info.default, name


def test_the_readme_shows_what_make_up_prints() -> None:
    printed = welcome(
        "http://127.0.0.1:8000",
        "http://127.0.0.1:5555",
        "longhaul-demo",
        "user longhaul, password in .longhaul/flower-auth",
    )
    assert printed.partition("The same in Python")[0].strip() in page("README.md")


def test_the_picture_is_small_and_has_every_number_at_either_side_of_the_kill() -> None:
    assert PICTURE.stat().st_size < 40_000
    assert str(PICTURE.relative_to(CHECKOUT)) in page("README.md")
    lines = [
        "".join(line.itertext()).replace(NBSP, " ")
        for line in ElementTree.parse(PICTURE).iter("{http://www.w3.org/2000/svg}text")
    ]
    (kill,) = [number for number, line in enumerate(lines) if "kill -9" in line]
    before, after = (re.search(r"s\s+(\d+)\s+response\..*(worker\.\d)", lines[at]) for at in (kill - 1, kill + 1))
    assert before and after
    assert int(after[1]) == int(before[1]) + 1
    assert after[2] != before[2]
