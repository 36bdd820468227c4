"""docs/runbook.md has a section for each alert, and the pages for operators name commands that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
from typer.main import get_command

from app.cli import cli
from app.operations.conditions import Code
from app.operations.explanation import Reason
from config.process import CHECKOUT
from tests.support.promql import alerts

PAGES = [
    "runbook",
    "operator",
    "operations",
    "metrics",
    "failures",
    "admin",
    "tenants",
    "deployment",
    "kubernetes",
    "systemd",
]
PAGE = (CHECKOUT / "docs" / "runbook.md").read_text(encoding="utf-8")
_INLINE = re.compile(r"`(longhaul [^`\n]+)`")
_SHOWN = re.compile(r"^(?:\$ )?(longhaul [a-z][^#\n]*)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\.\.\.|[A-Z]{2,}")


def sections(page: str) -> dict[str, str]:
    """What stands under each heading of the third level."""
    parts = re.split(r"^### (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(page: str) -> Iterator[str]:
    """The command lines in a page: in its text, and in its blocks."""
    yield from _INLINE.findall(page)
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if language in ("", "sh", "bash", "console"):
            yield from _SHOWN.findall(block)


def test_every_alert_has_its_section_in_the_order_of_the_file() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert [name for name in sections(PAGE) if name.startswith("Longhaul")] == names
    assert [rule["annotations"]["runbook_url"] for rule in alerts()] == [
        f"docs/runbook.md#{name.lower()}" for name in names
    ]


def test_every_alert_has_a_command_to_look_and_what_to_do() -> None:
    for name, section in sections(PAGE).items():
        if name.startswith("Longhaul"):
            look, do = (re.search(rf"^\* \*\*{word}:\*\* (.+)$", section, re.MULTILINE) for word in ("Look", "Do"))
            assert look is not None and "`" in look[1], name
            assert do is not None, name


def test_every_question_has_a_command() -> None:
    questions = [name for name in sections(PAGE) if name.endswith("?")]
    assert len(questions) >= 8
    assert [name for name in questions if not list(commands(sections(PAGE)[name]))] == []


def test_every_reason_to_wait_has_its_next_step() -> None:
    ended = {Reason.COMPLETED, Reason.INCOMPLETE, Reason.FAILED, Reason.CANCELLED}
    assert {each.value for each in Reason if each not in ended} - set(re.findall(r"`(\w+)`", PAGE)) == set()
    assert {Code.MAINTENANCE_AWAY, Code.NOT_DISPATCHED, Code.LOGS_OVERDUE} <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_command_that_a_page_names_is_there_with_its_options() -> None:
    assert _what_is_wrong("longhaul responses list --colour red") == "--colour"
    for page in PAGES:
        found = commands((CHECKOUT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
        assert {line: wrong for line in found if (wrong := _what_is_wrong(line)) is not None} == {}, page


def _what_is_wrong(line: str) -> str | None:
    """The word that is no command, or the option that the command does not have."""
    here: Any = get_command(cli)
    context = click.Context(here)
    for word in shlex.split(line)[1:]:
        options = {each for parameter in here.params for each in parameter.opts}
        if word.startswith("--"):
            if word.partition("=")[0] not in options | {"--help"}:
                return word
        elif isinstance(getattr(here, "commands", None), dict) and not _PLACEHOLDER.search(word):
            found = here.get_command(context, word)
            if found is None:
                return word
            here = found
    return None
