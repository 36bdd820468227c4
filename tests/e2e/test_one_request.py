"""One request through all processes: its id in every line about it, through a kill -9, in JSON, and no secret."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.test_keys import command
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.scripted import models_of
from tests.support.services import open_folder
from tests.support.waiting import PATIENCE_SECONDS, until_sync

MODEL = "scripted"
ID = "job-7/000001"
SECRET = "the-secret-word"
TIMES = 60


@pytest.fixture(scope="module")
def talking() -> Iterator[Longhaul]:
    """Two workers, whose processes all log JSON, and the API asks for keys."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(models_of(MODEL) + "[models.engine_args]\ntokens_per_second = 400.0\n")
        said = {"LONGHAUL_LOG_FORMAT": "json", "LONGHAUL_LOG_REQUESTS": "summary", "LONGHAUL_AUTH": "keys"}
        with running(Longhaul(folder / "home", models, workers=2, **said)) as installation:
            yield installation


def lines_of(installation: Longhaul) -> list[dict[str, Any]]:
    """All whole lines; each is one JSON object, whichever process it comes from."""
    text = installation.log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def test_a_request_is_named_in_the_lines_of_every_process_through_a_kill_9(talking: Longhaul) -> None:
    project = command(talking, "projects", "create", "red")
    key = command(talking, "keys", "create", "--project", project, "--name", "mine")

    def found(message: str, **fields: Any) -> dict[str, Any] | None:
        wanted = {"message": message, "response_id": response_id, **fields}
        return next((line for line in lines_of(talking) if wanted.items() <= line.items()), None)

    until_sync(
        lambda: sum("is ready as" in line["message"] for line in lines_of(talking)) == 2, what="two workers are ready"
    )
    with httpx.Client(base_url=talking.url, timeout=PATIENCE_SECONDS) as http:
        headers = {"Authorization": f"Bearer {key}", "x-request-id": ID}
        body = {"model": MODEL, "input": f"/repeat {TIMES} {SECRET}", "background": True}
        answer = http.post("/v1/responses", json=body, headers=headers)
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, ID)
        response_id = answer.json()["id"]
        first = until_sync(lambda: found("claimed", attempt=1), what="the first claim")
        os.kill(first["pid"], signal.SIGKILL)
        last = until_sync(lambda: found("completed", attempt=2), what="the end of the second attempt")
        assert SECRET in http.get(f"/v1/responses/{response_id}", headers=headers).text
    lines = lines_of(talking)
    named = [line for line in lines if line.get("response_id") == response_id and line["process"] != "api"]
    said = [(line["process"], line["message"], line["attempt"], line["worker"]) for line in named]
    assert said == [
        ("worker", "claimed", 1, first["worker"]),
        ("maintenance", "the worker is gone; the response goes to another one", 1, first["worker"]),
        ("worker", "claimed", 2, last["worker"]),
        ("worker", "response", 2, last["worker"]),
        ("worker", "completed", 2, last["worker"]),
    ]
    assert {line["request_id"] for line in named} == {ID}
    assert first["worker"] != last["worker"]
    asked = found("request", method="POST", process="api")
    assert asked is not None and (asked["request_id"], asked["project"]) == (ID, project)


def test_every_line_of_every_process_is_json_and_none_has_a_secret(talking: Longhaul) -> None:
    """After the test before, which has made some. Every process logs at its start, or at its end."""
    admin_key, flower = ((talking.home / name).read_text().strip() for name in ("admin-key", "flower-auth"))
    talking.stop()
    lines = lines_of(talking)
    processes = {line["process"] for line in lines}
    assert {"api", "worker", "maintenance", "longhaul"} <= processes, processes
    text = talking.log.read_text()
    for secret in (SECRET, admin_key, flower.partition(":")[2], "sk-lh-"):
        assert secret not in text
    for line in lines:
        assert {"time", "level", "logger", "message", "process"} <= line.keys()
