"""`LONGHAUL_AUTH=keys longhaul up`: two projects of one installation; one request through all processes."""

from __future__ import annotations

import json
import os
import signal
import stat
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import new_project
from tests.support.longhaul import Longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync

MODEL = "scripted"
REQUEST_ID = "job-7/000001"
SECRET = "the-secret-word"


def client_of(installation: Longhaul, key: str) -> OpenAI:
    return OpenAI(base_url=f"{installation.url}/v1", api_key=key, max_retries=0)


def test_the_first_admin_key_lies_where_up_says(pair: Longhaul) -> None:
    file = pair.home / "admin-key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    until_sync(lambda: f"The first admin key: {file}" in pair.log.read_text(), what="the welcome")
    with client_of(pair, file.read_text().strip()) as client:
        client.models.list()
        with pytest.raises(openai.PermissionDeniedError, match="belongs to no project"):
            client.responses.create(model=MODEL, input="Hello!")
    assert httpx.get(f"{pair.url}/v1/models", timeout=PATIENCE_SECONDS).status_code == 401


def lines_of(installation: Longhaul) -> list[dict[str, Any]]:
    """All whole lines; each is one JSON object, whichever process it comes from."""
    text = installation.log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def test_a_request_is_named_in_the_lines_of_every_process_through_a_kill_9(pair: Longhaul, both: list[str]) -> None:
    project, key = new_project(pair, "green")

    def found(message: str, **fields: Any) -> dict[str, Any] | None:
        wanted = {"message": message, "response_id": response_id, **fields}
        return next((line for line in lines_of(pair) if wanted.items() <= line.items()), None)

    with httpx.Client(base_url=pair.url, timeout=PATIENCE_SECONDS) as http:
        headers = {"Authorization": f"Bearer {key}", "x-request-id": REQUEST_ID}
        body = {"model": MODEL, "input": f"/repeat 60 {SECRET}", "background": True}
        answer = http.post("/v1/responses", json=body, headers=headers)
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, REQUEST_ID)
        response_id = answer.json()["id"]
        first = until_sync(lambda: found("claimed", attempt=1), what="the first claim")
        os.kill(first["pid"], signal.SIGKILL)
        last = until_sync(lambda: found("completed", attempt=2), what="the end of the second attempt")
        assert SECRET in http.get(f"/v1/responses/{response_id}", headers=headers).text
    lines = lines_of(pair)
    named = [line for line in lines if line.get("response_id") == response_id and line["process"] != "api"]
    said = [(line["process"], line["message"], line["attempt"], line["worker"]) for line in named]
    assert said == [
        ("worker", "claimed", 1, first["worker"]),
        ("maintenance", "the worker is gone; the response goes to another one", 1, first["worker"]),
        ("worker", "claimed", 2, last["worker"]),
        ("worker", "response", 2, last["worker"]),
        ("worker", "completed", 2, last["worker"]),
    ]
    assert {line["request_id"] for line in named} == {REQUEST_ID}
    assert first["worker"] != last["worker"]
    asked = found("request", method="POST", process="api")
    assert asked is not None and (asked["request_id"], asked["project"]) == (REQUEST_ID, project)

    # Every line of every process is JSON, and none has a secret.
    assert {"api", "worker", "maintenance", "longhaul"} <= {line["process"] for line in lines}
    assert all({"time", "level", "logger", "message", "process"} <= line.keys() for line in lines)
    admin_key, flower = ((pair.home / name).read_text().strip() for name in ("admin-key", "flower-auth"))
    for secret in (SECRET, admin_key, flower.partition(":")[2], "sk-lh-"):
        assert secret not in pair.log.read_text()
