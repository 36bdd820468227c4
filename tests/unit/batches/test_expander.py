"""A step of a batch's lines: what it weighs, and what becomes of it when something fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.batches import expander
from app.batches.expander import GIVEN_UP, STEP_BYTES, Expander
from app.batches.jsonl import RawLine
from app.bounds import Bound
from app.protocol.errors import Unavailable
from app.protocol.requests.bodies.batch import RESPONSES
from app.protocol.status import BatchStatus
from app.store.batches.unfinished import LinesLeft
from app.store.database import StatementTimeout, StoreUnavailable
from config.settings import Settings
from tests.support.batches import line


class _Made(SimpleNamespace):
    """A response of a line, as far as a step looks at it."""


BATCH = SimpleNamespace(
    id="batch_1",
    project="default",
    key_id=None,
    endpoint=RESPONSES,
    status=BatchStatus.IN_PROGRESS,
    seconds_left=60.0,
    lines_cancelled_at=None,
    total=1000,
    expanded=0,
)


class Steps:
    """An expander without Postgres: `brings` is what each line brings in, `refuses` raises in place of an insert."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brings: int = 0) -> None:
        self.inserted: list[list[Any]] = []
        self.held: list[int] = []
        self.trouble: Exception | None = None
        self.lines = 1000
        self.brought = Bound("attachments", 8 * 1024 * 1024)
        self.brings = brings
        self.bad: set[str] = set()
        self.slow = ""
        acceptor: Any = SimpleNamespace(accept=self._accept)
        self.expander = Expander(self._db(), acceptor, self._dispatch, Settings())
        monkeypatch.setattr(expander, "NewResponse", _Made)
        monkeypatch.setattr(expander, "_is_current", self._yes)
        monkeypatch.setattr(expander, "insert_lines", self._insert)
        monkeypatch.setattr(expander.rows, "find", self._find)
        monkeypatch.setattr(expander.changes, "advance", self._yes)
        monkeypatch.setattr(expander.unfinished, "lines_of", self._lines_of)
        monkeypatch.setattr(expander.results, "skip", self._skip)
        monkeypatch.setattr(self.expander, "_next_lines", self._next_lines)
        self.skipped: list[Any] = []

    def _db(self) -> Any:
        @asynccontextmanager
        async def begin(**_: bool) -> AsyncIterator[None]:
            yield None

        return SimpleNamespace(begin=begin)

    async def _accept(self, project: str, request: Any, held: ExitStack, **more: Any) -> Any:
        if more["place"].custom_id == self.slow:
            raise Unavailable("The files were not read in time.")
        if more["place"].custom_id in self.bad:
            raise KeyError("nobody foresaw it")
        held.enter_context(await self.brought.wait(project, self.brings))
        return SimpleNamespace(row=_Made(size=200 + self.brings, queue="q", name=more["place"].custom_id))

    async def _insert(self, _: Any, made: list[Any]) -> tuple[int, None]:
        self.held.append(self.brought.held)
        if self.trouble is not None:
            raise self.trouble
        self.inserted.append(made)
        return len(made), None

    async def _skip(self, _: Any, batch_id: str, lines: list[Any]) -> None:
        self.skipped += lines

    async def _find(self, *_: Any) -> Any:
        return BATCH

    async def _lines_of(self, *_: Any) -> LinesLeft:
        return LinesLeft(in_file=self.lines, slots=None)

    async def _next_lines(self, _: Any, most: int) -> list[RawLine]:
        return [RawLine(number, line(str(number)), number) for number in range(1, most + 1)]

    async def _yes(self, *_: Any) -> bool:
        return True

    async def _dispatch(self, queue: str) -> None:
        pass


async def test_a_step_weighs_what_its_files_bring_in_and_the_last_one_counts_until_the_insert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    megabyte = 1024 * 1024
    steps = Steps(monkeypatch, brings=7 * megabyte)
    for _ in range(3):
        assert await steps.expander.expand(BATCH.id)
    assert [len(made) for made in steps.inserted] == [1, 1, 1]
    assert steps.held == [7 * megabyte] * 3 and steps.brought.held == 0
    steps = Steps(monkeypatch, brings=megabyte)
    await steps.expander.expand(BATCH.id)
    assert [len(made) for made in steps.inserted] == [STEP_BYTES // megabyte]
    assert steps.held == [megabyte]


async def test_a_step_that_postgres_does_not_take_is_halved_and_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    steps.trouble = StatementTimeout("too long")
    for _ in range(3):
        with pytest.raises(StatementTimeout):
            await steps.expander.expand(BATCH.id)
    steps.trouble = None
    for _ in range(3):
        await steps.expander.expand(BATCH.id)
    assert [len(made) for made in steps.inserted] == [32, 64, 128]


@pytest.mark.parametrize(
    ("trouble", "given_up"),
    [(ValueError("a value"), True), (StatementTimeout("too long"), True), (StoreUnavailable("away"), False)],
)
async def test_a_line_that_cannot_be_inserted_is_its_own_error_and_an_outage_is_nobodys(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception, given_up: bool
) -> None:
    steps = Steps(monkeypatch)
    insert, steps.lines = steps._insert, 1

    async def refuses(connection: Any, made: list[Any]) -> tuple[int, None]:
        if made:
            raise trouble
        return await insert(connection, made)

    monkeypatch.setattr(expander, "insert_lines", refuses)
    failures = 0
    for _ in range(2 * GIVEN_UP):
        try:
            await steps.expander.expand(BATCH.id)
            break
        except type(trouble):
            failures += 1
    assert failures == {ValueError: 0, StatementTimeout: GIVEN_UP, StoreUnavailable: 2 * GIVEN_UP}[type(trouble)]
    assert [each.error["code"] for each in steps.skipped] == ["server_error"] * given_up


async def test_a_line_whose_files_are_read_too_slowly_holds_up_none_before_it_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(monkeypatch)
    steps.slow, steps.lines = "3", 5
    await steps.expander.expand(BATCH.id)
    assert [made.name for made in steps.inserted[0]] == ["1", "2"]
    steps.slow, failures = "1", 0
    while not steps.skipped:
        try:
            await steps.expander.expand(BATCH.id)
        except Unavailable:
            failures += 1
    assert failures == GIVEN_UP and [each.line for each in steps.skipped] == [1]


async def test_what_nobody_foresaw_in_a_line_is_that_lines_error_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(monkeypatch)
    steps.bad, steps.lines = {"2", "4"}, 5
    await steps.expander.expand(BATCH.id)
    assert [made.name for made in steps.inserted[0]] == ["1", "3", "5"]
    assert [(each.line, each.custom_id, each.error["code"]) for each in steps.skipped] == [
        (2, "2", "server_error"),
        (4, "4", "server_error"),
    ]
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
    assert "foresaw" not in caplog.text
