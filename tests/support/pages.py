"""The tables of the docs."""

from __future__ import annotations

from config.process import CHECKOUT

PROTOCOL = (CHECKOUT / "docs" / "protocol.md").read_text(encoding="utf-8")


def table(heading: str, page: str = PROTOCOL) -> list[list[str]]:
    """The rows of the first table under a heading."""
    section = page.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]
