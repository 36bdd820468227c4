"""What the operators' commands print: a table on a terminal, elsewhere lines with tabs, and lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.protocol.events.frames import encode_line

if TYPE_CHECKING:
    from rich.table import Table

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON: one object a line.")]

Entry = Mapping[str, Any]
"""An object of an answer."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    of: Callable[[Entry], Any]
    """Returns an entry's value; None is shown as `-`."""
    is_number: bool = False
    """Numbers stand at the right."""


def column(title: str, name: str | None = None) -> Column:
    """The column of a field, which has the title's name unless another is given."""
    return Column(title, lambda entry: entry[name or title.replace(" ", "_")])


def number(title: str, name: str | None = None) -> Column:
    return Column(title, column(title, name).of, is_number=True)


def moment(title: str, name: str) -> Column:
    """A column of epoch seconds."""
    return Column(title, lambda entry: _utc(entry[name]))


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float | None) -> str | None:
    """`3.2s`, `41s`, `4m 10s`, `3h 5m`, `2d 4h`."""
    if seconds is None:
        return None
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part}{smaller}"
    return f"{whole}s"


def show(entries: Iterable[Entry], columns: Sequence[Column], *, as_json: bool) -> None:
    """Prints the entries: all of each as JSON, or these columns of it."""
    if as_json:
        show_json(entries)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(_table(entries, columns))
    else:
        typer.echo("\t".join(each.title for each in columns))
        for entry in entries:
            typer.echo("\t".join(_cell(each.of(entry)) for each in columns))


def show_json(entries: Iterable[Entry]) -> None:
    for entry in entries:
        typer.echo(encode_line(entry))


def say(line: str, style: str | None = None, *, err: bool = False) -> None:
    """Prints a line of text, in a style of rich on a terminal."""
    if style is None or err or not sys.stdout.isatty():
        typer.echo(plain(line), err=err)
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(plain(line), style))


def plain(text: str) -> str:
    """The text without what a terminal would obey: names of others may hold anything."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _cell(value: Any) -> str:
    return "-" if value is None else plain(str(value))


def _table(entries: Iterable[Entry], columns: Sequence[Column]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for each in columns:  # The first one names the entry, for another command: it is copied from here.
        justify: Literal["right", "left"] = "right" if each.is_number else "left"
        table.add_column(each.title, justify=justify, overflow="fold", no_wrap=each is columns[0])
    for entry in entries:
        table.add_row(*(Text(_cell(each.of(entry))) for each in columns))
    return table


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how much of long work is done, by a bar on stderr if that is a terminal; yields what is told `done`."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
