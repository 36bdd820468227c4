"""The README's first screen is what happens."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from app.local.welcome import Addresses, welcome
from tests.picture import NBSP, PICTURE
from tests.unit.docs.test_paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_what_make_up_prints() -> None:
    printed = welcome(
        Addresses("127.0.0.1", 8000, 5555), "longhaul-demo", "user longhaul, password in .longhaul/flower-auth"
    )
    assert printed.partition("The same in Python")[0].strip() in README


def test_the_picture_is_small_and_has_every_number_at_either_side_of_the_kill() -> None:
    assert PICTURE.stat().st_size < 40_000
    assert str(PICTURE.relative_to(ROOT)) in README
    lines = [
        "".join(line.itertext()).replace(NBSP, " ")
        for line in ElementTree.parse(PICTURE).iter("{http://www.w3.org/2000/svg}text")
    ]
    (kill,) = [number for number, line in enumerate(lines) if "kill -9" in line]
    before, after = (re.search(r"s\s+(\d+)\s+response\..*(worker\.\d)", lines[at]) for at in (kill - 1, kill + 1))
    assert before and after
    assert int(after[1]) == int(before[1]) + 1
    assert after[2] != before[2]
