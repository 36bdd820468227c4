"""A machine that shuts down, and `longhaul up` that is told to stop while a client waits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import counted
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import until_sync

pytestmark = pytest.mark.long

MODEL = "scripted"
ANSWER = " ".join(["word"] * 1000)
"""2.5 seconds of the scripted engine, longer than its worker would wait."""


@pytest.fixture(scope="module")
def own(scripted_models: Path) -> Iterator[Longhaul]:
    graces = {"LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0", "LONGHAUL_API_GRACE_SECONDS": "1000"}
    with open_folder() as folder, running(Longhaul(folder / "home", scripted_models, **graces)) as installation:
        yield installation


def test_a_machine_that_shuts_down_loses_nothing_and_streams_read_the_same_afterwards(own: Longhaul) -> None:
    """Every process gets SIGTERM at once, services included."""
    numbers, count = 600, 8
    with own.client() as client, own.http() as http:
        *_, last = client.responses.create(model=MODEL, input="/count 60", stream=True, background=True)
        ended = last.response.id
        before, response = raw_stream(own, ended), client.responses.retrieve(ended)
        assert response.output_text == counted(60)
        body = {"model": MODEL, "input": f"/count {numbers}", "background": True}
        ids = [http.post("/v1/responses", json=body).json()["id"] for _ in range(count)]

        def responses() -> list[dict[str, Any]]:
            return [http.get(f"/v1/responses/{response_id}").json() for response_id in ids]

        def statuses() -> set[str]:
            return {each["status"] for each in responses()}

        until_sync(lambda: "queued" not in statuses(), what="all have begun", pause=0.25)
        own.terminate_all()
        own.start()
        assert raw_stream(own, ended) == before
        assert before.endswith(raw_stream(own, ended, after=20))
        assert client.responses.retrieve(ended).to_dict() == response.to_dict()
        until_sync(lambda: not statuses() & {"queued", "in_progress"}, 120, "all end", pause=0.25)
        assert [(each["status"], each["error"]) for each in responses()] == [("completed", None)] * count
        assert {each["output"][0]["content"][0]["text"] for each in responses()} == {counted(numbers)}


def test_the_foreground_answer_is_complete(own: Longhaul) -> None:
    with own.client() as client, ThreadPoolExecutor(1) as threads:
        events = client.responses.create(model=MODEL, input=f"/say {ANSWER}", stream=True)
        while next(events).type != "response.output_text.delta":
            pass
        rest = threads.submit(lambda: [*events])
        assert own.stop() == 0
        final: Any = rest.result()[-1]
    assert (final.type, final.response.output_text) == ("response.completed", ANSWER)


def raw_stream(installation: Longhaul, response_id: str, after: int = -1) -> bytes:
    parameters = {"stream": "true", **({"starting_after": str(after)} if after >= 0 else {})}
    with installation.http() as http:
        return http.get(f"/v1/responses/{response_id}", params=parameters).content
