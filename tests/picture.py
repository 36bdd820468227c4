"""Draws the README's picture: a stream whose worker is killed, as a real run showed it.

    python -m tests.picture        # half a minute; writes docs/img/kill-9.svg

`longhaul up` runs two workers of the scripted engine, at the pace of a slow model, so that there is time to kill.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from config.settings import CHECKOUT
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import until_sync

PICTURE = CHECKOUT / "docs" / "img" / "kill-9.svg"
MODELS = """
[[models]]
name = "scripted"
engine = "tests.support.scripted:ScriptedEngine"
engine_args = { tokens_per_second = 40, tokens_per_delta = 4 }
"""
"""A token is a byte: ten numbers a second."""
NUMBERS = range(10, 60)
KILLED_AFTER = 21
"""The event that the reader has when the worker is killed."""
SHOWN = 4
"""Events at the beginning, at either side of the kill, and at the end."""

WIDTH, LINE, LEFT, TOP = 820, 19, 18, 30
NBSP = "\u00a0"
"""SVG makes one space of several."""
INK, DIM, RED, GREEN, BLUE = "#c9d1d9", "#8b949e", "#ff7b72", "#7ee787", "#79c0ff"


@dataclass(frozen=True, slots=True)
class Event:
    """An event as the reader got it."""

    seconds: float
    """Since the request was sent."""
    number: int
    type: str
    text: str
    """Text of a delta."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happened."""

    events: list[Event]
    killed: float
    """Seconds since the request was sent."""
    pid: int
    workers: tuple[str, str]
    """Which one was killed, and which one went on."""

    def check(self) -> None:
        """Raises AssertionError unless the stream is whole."""
        assert [event.number for event in self.events] == list(range(len(self.events)))
        assert "".join(event.text for event in self.events) == text()
        assert self.events[-1].type == "response.completed"
        assert self.workers[0] != self.workers[1]


def text() -> str:
    return "".join(f"{number}, " for number in NUMBERS)


def recorded() -> Run:
    """Starts an installation, streams, and kills the worker in the middle."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(MODELS)
        with running(Longhaul(folder / "home", models, workers=2)) as longhaul:
            until_sync(lambda: longhaul.log.read_text().count("@") >= 2 and _workers(longhaul), 60, "two workers")
            return _streamed(longhaul)


def _streamed(longhaul: Longhaul) -> Run:
    body = {"model": "scripted", "input": f"/say {text()}", "stream": True, "background": True}
    events, killed, pid, response_id = list[Event](), 0.0, 0, ""
    with longhaul.http() as http:
        http.post("/v1/responses", json={"model": "scripted", "input": "Hello!"}).raise_for_status()
        began = time.monotonic()  # Nothing is done for the first time any more.
        with http.stream("POST", "/v1/responses", json=body) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                data = json.loads(line.removeprefix("data: "))
                response_id = response_id or data["response"]["id"]
                delta = data["delta"] if data["type"].endswith(".delta") else ""
                events.append(Event(time.monotonic() - began, data["sequence_number"], data["type"], delta))
                if data["sequence_number"] == KILLED_AFTER:
                    (name,) = _claims(longhaul, response_id)
                    (worker,) = longhaul.named([_workers(longhaul)[name], "celeryd"])
                    killed, pid = time.monotonic() - began, worker.pid
                    worker.send_signal(signal.SIGKILL)
    first, second = _claims(longhaul, response_id)
    return Run(events, killed, pid, (first, second))


def _workers(longhaul: Longhaul) -> dict[str, str]:
    """`worker.1` in the log -> its name among the processes, once both are ready."""
    found = re.findall(r"^(worker\.\d) .*: (\S+)@\S+ ready\.$", longhaul.log.read_text(), re.MULTILINE)
    return dict(found) if len(found) >= 2 else {}


def _claims(longhaul: Longhaul, response_id: str) -> list[str]:
    """Which workers have claimed the response, in order."""
    return re.findall(rf"^(worker\.\d) .* {response_id} claimed, ", longhaul.log.read_text(), re.MULTILINE)


def drawn(run: Run) -> str:
    """The picture. It has a background of its own, so that light and dark pages show it alike."""
    rows = list(_rows(run))
    height = TOP + LINE * len(rows) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">',
        "<title>A stream goes on at the next number after kill -9 of its worker</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>',
    ]
    for at, (colour, line) in enumerate(rows):
        lines.append(f'<text x="{LEFT}" y="{TOP + at * LINE}" fill="{colour}">{escape(line).replace(" ", NBSP)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _rows(run: Run) -> Iterator[tuple[str, str]]:
    """Colour and text of each line."""
    gaps = [later.seconds - earlier.seconds for earlier, later in pairwise(run.events)]
    silence = max(gaps[KILLED_AFTER:])
    first = gaps.index(silence) + 1
    before, after = run.events[:first], run.events[first:]
    yield INK, """$ curl -N $API/v1/responses -d '{"stream": true, "background": true, ...}'"""
    yield from _some(before, run.workers[0], BLUE)
    yield RED, f"{run.killed:6.2f} s       $ kill -9 {run.pid}      # {run.workers[0]}, in the middle of the answer"
    yield from _some(after, run.workers[1], GREEN)
    last = run.events[-1].number
    yield INK, f"events 0 to {last}, none missing, none twice; the reader saw a pause of {silence:.1f} s"


def _some(events: list[Event], worker: str, colour: str) -> Iterator[tuple[str, str]]:
    for event in events[:SHOWN]:
        yield colour, _line(event, worker)
    yield DIM, "              ..."
    for event in events[-SHOWN:]:
        yield colour, _line(event, worker)


def _line(event: Event, worker: str) -> str:
    shown = f'"{event.text}"' if event.text else ""
    return f"{event.seconds:6.2f} s  {event.number:4}  {event.type:<30}{shown:<12}{worker if event.text else ''}"


def main() -> None:
    run = recorded()
    run.check()
    Path(PICTURE).write_text(drawn(run), encoding="utf-8")


if __name__ == "__main__":
    main()
