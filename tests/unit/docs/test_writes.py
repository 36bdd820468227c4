"""docs/internals/writes.md has every statement that writes `responses`."""

from __future__ import annotations

import re

from config.process import CHECKOUT

_WRITE = re.compile(r"(?:UPDATE|INSERT INTO|DELETE FROM) responses\b")
_OPENING = re.compile(r"^(?:async )?def (\w+)|^(_[A-Z_]+)\b.*= ", re.MULTILINE)
_NAMED = re.compile(r"^\| `(app/[\w/]+\.py)` \(`(\w+)`\)", re.MULTILINE)


def test_the_page_has_every_statement_that_writes_responses() -> None:
    found = set()
    for path in (CHECKOUT / "app").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for write in _WRITE.finditer(text):
            *_, opening = _OPENING.finditer(text, 0, write.end())
            found.add((str(path.relative_to(CHECKOUT)), opening[1] or opening[2]))
    assert set(_NAMED.findall((CHECKOUT / "docs/internals/writes.md").read_text(encoding="utf-8"))) == found
