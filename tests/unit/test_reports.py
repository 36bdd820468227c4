"""What pytest says about a test that fails."""

from __future__ import annotations

import gc

import pytest


def test_no_garbage_is_collected_while_a_failure_is_reported(request: pytest.FixtureRequest) -> None:
    """Else a finalizer that parses code, as a traceback with its `^^^` does, ends pytest with an INTERNALERROR."""
    seen = []

    class Failure(Exception):
        def __str__(self) -> str:
            seen.append(gc.isenabled())
            return "failed"

    def fail() -> None:
        raise Failure

    call = pytest.CallInfo.from_call(fail, "call")
    report = request.node.ihook.pytest_runtest_makereport(item=request.node, call=call)
    assert report.failed
    assert set(seen) == {False}
    assert gc.isenabled()
