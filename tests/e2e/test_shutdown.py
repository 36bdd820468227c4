"""A machine that shuts down: every process of `longhaul up` gets SIGTERM at once, services included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import until_sync

RESPONSES = 24
NUMBERS = 2000
TEXT = " ".join(str(number + 1) for number in range(NUMBERS))


def test_what_runs_when_everything_gets_sigterm_finishes_after_the_next_start(scripted_models: Path) -> None:
    with (
        open_folder() as folder,
        running(Longhaul(folder / "home", scripted_models, workers=2)) as installation,
        installation.http() as http,
    ):
        body = {"model": "scripted", "input": f"/count {NUMBERS}", "background": True}
        ids = [http.post("/v1/responses", json=body).json()["id"] for _ in range(RESPONSES)]

        def responses() -> list[dict[str, Any]]:
            return [http.get(f"/v1/responses/{response_id}").json() for response_id in ids]

        until_sync(lambda: {each["status"] for each in responses()} == {"in_progress"}, 60, "all run")
        installation.terminate_all()
        installation.start()
        until_sync(lambda: not {each["status"] for each in responses()} & {"queued", "in_progress"}, 120, "all end")
        assert [(each["status"], each["error"]) for each in responses()] == [("completed", None)] * RESPONSES
        assert {each["output"][0]["content"][0]["text"] for each in responses()} == {TEXT}
