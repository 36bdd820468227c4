"""Which inserts join a line that the process has seen."""

from __future__ import annotations

import pytest

from app.queue.message import Priority
from app.store.responses.lines import SEEN_SECONDS, Lines

BACKGROUND = ("model.a", Priority.BACKGROUND.value)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_is_joined_for_a_moment_after_it_was_seen() -> None:
    clock = Clock()
    lines = Lines(clock)
    assert not lines.can_be_joined([BACKGROUND])
    lines.note(["model.a"], waits=True)
    clock.now += SEEN_SECONDS
    assert lines.can_be_joined([BACKGROUND, BACKGROUND])
    clock.now += 0.001
    assert not lines.can_be_joined([BACKGROUND])


def test_a_line_that_has_gone_is_not_joined() -> None:
    lines = Lines(Clock())
    lines.note(["model.a"], waits=True)
    lines.note(["model.a"], waits=False)
    assert not lines.can_be_joined([BACKGROUND])


@pytest.mark.parametrize(
    "other",
    [("model.b", Priority.BACKGROUND.value), ("model.a", Priority.FOREGROUND.value)],
    ids=["of another queue", "of the foreground"],
)
def test_one_that_may_be_sent_at_once_has_the_whole_batch_decided(other: tuple[str, int]) -> None:
    lines = Lines(Clock())
    lines.note(["model.a"], waits=True)
    assert not lines.can_be_joined([BACKGROUND, other])
