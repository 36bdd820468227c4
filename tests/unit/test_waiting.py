from __future__ import annotations

import pytest

from tests.support.waiting import until_sync


def test_a_wait_that_ran_out_tells_how_things_stood_at_its_end() -> None:
    seen: list[str] = []
    with pytest.raises(AssertionError, match=r"the end in \['looked'\]"):
        until_sync(lambda: seen.append("looked"), 0.0, lambda: f"the end in {seen}")
