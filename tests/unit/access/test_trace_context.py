"""W3C Trace Context: what is valid is kept, what is not is ignored."""

from __future__ import annotations

import pytest

from app.access.trace_context import MAX_MEMBERS, MAX_STATE_CHARS, NO_TRACE, TraceContext, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_trace_is_passed_on_as_it_came() -> None:
    found = trace_context([PARENT], ["congo=t61rcWkgMzE, rojo=00f0", "", "a@b=1"])
    assert found == TraceContext(PARENT, "congo=t61rcWkgMzE,rojo=00f0,a@b=1")


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        f"{PARENT}\n",
        f"{PARENT}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        "x" * 8192,
    ],
)
def test_a_parent_that_is_not_valid_is_none(parent: str) -> None:
    assert trace_context([parent], ["a=1"]) is NO_TRACE


def test_two_parents_are_none() -> None:
    assert trace_context([PARENT, PARENT], []) is NO_TRACE
    assert trace_context([], ["a=1"]) is NO_TRACE


def test_of_a_later_version_the_known_part_is_kept() -> None:
    assert trace_context([f"01-{TRACE}-{SPAN}-03-later"], []) == TraceContext(f"00-{TRACE}-{SPAN}-03")


@pytest.mark.parametrize(
    "state",
    [
        "a",
        "A=1",
        "a=1\x00",
        "a=ä",
        ",".join(f"k{number}=v" for number in range(MAX_MEMBERS + 1)),
        "a=" + "x" * 255 + ",b=" + "x" * MAX_STATE_CHARS,
    ],
)
def test_a_state_that_is_not_valid_is_left_out(state: str) -> None:
    assert trace_context([PARENT], [state]) == TraceContext(PARENT)
