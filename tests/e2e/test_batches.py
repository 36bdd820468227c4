"""Batches and windows on real processes, by the official client, while a worker is killed."""

from __future__ import annotations

from tests.e2e.acceptance.installed import accept_on
from tests.support.longhaul import Longhaul


def test_what_a_user_does_with_batches_and_windows_holds_while_a_worker_is_killed(pair: Longhaul) -> None:
    accept_on(pair, "scripted", lines=200, windowed=20, tell=print)
