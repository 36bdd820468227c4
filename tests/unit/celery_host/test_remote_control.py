"""Revokes: which of them a worker cancels rows for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workers.celery_host import remote_control


@pytest.mark.parametrize("committed", [False, True])
def test_a_revoke_of_what_the_api_has_cancelled_stops_jobs_and_looks_at_no_row(
    monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    stopped: list[str] = []
    looked: list[Any] = []
    monkeypatch.setattr(remote_control.celery_control, "revoke", lambda *_, **__: {"ok": "revoked"})
    monkeypatch.setattr(remote_control, "_cancel_rows", lambda consumer, ids: ids)
    pool = SimpleNamespace(revoke=stopped.extend, run_in_background=looked.append)
    state = SimpleNamespace(consumer=SimpleNamespace(pool=pool))
    sent = {"committed": True} if committed else {}
    assert remote_control.revoke(state, ["resp_1", "resp_2"], terminate=True, **sent) == {"ok": "revoked"}
    assert stopped == ["resp_1", "resp_2"]
    assert looked == ([] if committed else [("resp_1", "resp_2")])
