"""Lines of the log: at once, or together and in their order."""

from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from config.logging.handler import MAX_BYTES, LineHandler, gathering_lines
from config.settings import CHECKOUT
from tests.support.waiting import until


class Writes(io.StringIO):
    """Keeps what was written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        if text:
            self.all.append(text)
        return len(text)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    monkeypatch.setattr(sys, "stderr", found := Writes())
    return found


@pytest.fixture
def log(writes: Writes) -> Iterator[logging.Logger]:
    """A logger that writes into `writes`."""
    root, handler = logging.getLogger(), LineHandler()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield logging.getLogger("longhaul.test")
    root.removeHandler(handler)
    root.setLevel(before)


async def test_lines_that_come_together_are_one_write_in_their_order(log: logging.Logger, writes: Writes) -> None:
    with gathering_lines():
        for number in range(3):
            log.info("%d", number)
        assert writes.all == []
        await until(lambda: writes.all)
        log.info("later")
        await until(lambda: len(writes.all) > 1)
    assert writes.all == ["0\n1\n2\n", "later\n"]


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO], ids=["a warning", "a line of another thread"])
async def test_what_may_not_wait_is_written_at_once_behind_all_that_waits(
    log: logging.Logger, writes: Writes, level: int
) -> None:
    with gathering_lines():
        log.info("first")
        if level == logging.WARNING:
            log.log(level, "second")
        else:
            await asyncio.to_thread(log.log, level, "second")
        assert writes.all == ["first\nsecond\n"]


async def test_no_write_is_longer_than_a_pipe_takes_in_one_piece(log: logging.Logger, writes: Writes) -> None:
    lines = [f"{number} " + "ü" * (MAX_BYTES // 8) for number in range(20)]
    with gathering_lines():
        for line in lines:
            log.info(line)
    assert "".join(writes.all).splitlines() == lines
    assert all(text.endswith("\n") and len(text.encode()) <= MAX_BYTES for text in writes.all)
    assert len(writes.all) < len(lines)


async def test_nothing_waits_behind_the_end_of_gathering(log: logging.Logger, writes: Writes) -> None:
    with gathering_lines():
        log.info("first")
    log.info("second")
    assert writes.all == ["first\n", "second\n"]


async def test_lines_wait_again_in_the_next_loop(log: logging.Logger, writes: Writes) -> None:
    async def gather(number: int) -> None:
        with gathering_lines():
            log.info("%d", number)
            if number:
                await until(lambda: "1\n" in writes.all)

    for number in range(2):
        await asyncio.to_thread(asyncio.run, gather(number))
    assert writes.all == ["0\n", "1\n"]


async def test_a_reader_that_is_gone_fails_nobody(log: logging.Logger, writes: Writes) -> None:
    with gathering_lines():
        log.info("first")
        writes.close()
        log.warning("second")


def test_a_process_that_exits_while_lines_wait_writes_them() -> None:
    program = """
import asyncio, logging, sys
from config.logging import setup_logging
from config.logging.handler import gathering_lines
setup_logging("INFO")
kept = gathering_lines()
async def main():
    kept.__enter__()
    logging.getLogger("a").info("the last line")
    sys.exit()
asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CHECKOUT, check=True)
    assert said.stderr.endswith("INFO a: the last line\n")
