"""A vLLM server that runs already: `vllm serve`, and `longhaul up --upstream` of the wheel alone, each killed in the
middle.

STREAMS=52 .venv/bin/python -m pytest tests/e2e/test_attached.py    # as many streams; 16 by default
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from openai import OpenAI

from tests.clients import test_openai
from tests.clients.target import Target, demo_script
from tests.e2e.conftest import events_of, raw_stream
from tests.engine.cases import demo_model
from tests.support import grammar
from tests.support.installations import running
from tests.support.longhaul import Longhaul, send_all
from tests.support.services import open_folder
from tests.support.vllm_serve import VllmServe
from tests.support.waiting import until_sync
from tests.support.wheels import install

pytestmark = [pytest.mark.vllm, pytest.mark.long]

MODEL = "demo"
TAKEOVER_SECONDS = 240.0
LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 300, "maxItems": 300}
SCHEMA = {"type": "object", "properties": {"numbers": LIST}, "required": ["numbers"], "additionalProperties": False}
LONG = {"ignore_eos": True, "max_output_tokens": 1200}
ALONE = {"max_output_tokens": 3500}
"""Two streams take as long for so many as sixteen for 1,200, and more than it takes to kill a worker."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, **LONG},
    "seeded": {"temperature": 1.0, "seed": 5, **LONG},
    "penalised": {"temperature": 0.0, "frequency_penalty": 0.6, **LONG},
    "grammar": {
        "temperature": 0.0,
        "max_output_tokens": 700,
        "text": {"format": {"type": "json_schema", "name": "numbers", "strict": True, "schema": SCHEMA}},
    },
}
EACH = int(os.environ.get("STREAMS", "16")) // len(KINDS)
"""Requests of each kind at once."""


@pytest.fixture(scope="module")
def server() -> Iterator[VllmServe]:
    with open_folder() as folder, VllmServe(folder, demo_model()) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def attached(server: VllmServe) -> Iterator[Longhaul]:
    """From an environment with the wheel and its declared dependencies alone."""
    with open_folder() as folder:
        longhaul = Longhaul(folder / "home", upstream=server.url, command=install(folder, "cpu"))
        with running(longhaul) as installation:
            yield installation


def bodies() -> list[dict[str, Any]]:
    return [
        {"model": MODEL, "input": f"Count from {number} to 60.", "background": True, "stream": True, **kind}
        for kind in KINDS.values()
        for number in range(1, EACH + 1)
    ]


def post(longhaul: Longhaul, body: dict[str, Any]) -> str:
    """Leaves the stream at its first event."""
    with longhaul.http() as http, http.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200
        first = next(line for line in answer.iter_lines() if line.startswith("data: "))
        return str(json.loads(first.removeprefix("data: "))["response"]["id"])


def read(longhaul: Longhaul, response_id: str, wait: int = 0) -> dict[str, Any]:
    with longhaul.http() as http:
        found: dict[str, Any] = http.get(f"/v1/responses/{response_id}?wait={wait}").raise_for_status().json()
        return found


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def length_of(longhaul: Longhaul, response_id: str) -> int:
    return len(str(read(longhaul, response_id)["output"]))


def wait_for(longhaul: Longhaul, ids: list[str], least: int) -> None:
    """Until the output of each has so many characters."""
    for each in ids:
        until_sync(lambda name=each: length_of(longhaul, name) >= least, TAKEOVER_SECONDS, f"{each} goes on", pause=0.1)


def ended(longhaul: Longhaul, ids: list[str]) -> list[dict[str, Any]]:
    def end(response_id: str) -> dict[str, Any] | None:
        found = read(longhaul, response_id, wait=10)
        return found if found["status"] not in ("queued", "in_progress") else None

    return [until_sync(partial(end, each), TAKEOVER_SECONDS, f"{each} ends") for each in ids]


def kill_worker(longhaul: Longhaul) -> None:
    workers = longhaul.named(("celeryd",))
    assert workers
    send_all(workers, signal.SIGKILL)


@pytest.mark.parametrize(
    "check",
    [
        test_openai.test_json_mode_and_log_probabilities,
        test_openai.test_background_is_polled_cancelled_and_deleted,
        test_openai.test_websocket,
    ],
)
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")
def test_the_openai_client(attached: Longhaul, check: Callable[[OpenAI, Target], None]) -> None:
    with attached.client() as client:
        check(client, Target(attached, MODEL, demo_script()))


def test_no_kill_of_worker_or_server_changes_an_answer(server: VllmServe, attached: Longhaul) -> None:
    undisturbed = [text_of(each) for each in ended(attached, [post(attached, body) for body in bodies()])]
    ids = [post(attached, body) for body in bodies()]
    wait_for(attached, ids, 200)
    kill_worker(attached)
    wait_for(attached, ids[:1], length_of(attached, ids[0]) + 100)
    server.kill()
    assert "in_progress" in {read(attached, each)["status"] for each in ids}
    server.start()
    found = ended(attached, ids)
    assert [(each["status"], each["error"]) for each in found if each["error"]] == []
    for body, before, after in zip(bodies(), undisturbed, map(text_of, found), strict=True):
        assert after == before, body
    for response_id in ids:
        grammar.check(events_of(raw_stream(attached, response_id)))


def test_without_the_logits_processor_only_what_has_a_state_fails(server: VllmServe, attached: Longhaul) -> None:
    server.kill()
    server.start(can_force=False)
    greedy, seeded = (
        {"model": MODEL, "input": "Tell me a story.", "background": True, "stream": True, **KINDS[kind], **ALONE}
        for kind in ("greedy", "seeded")
    )
    (before,) = ended(attached, [post(attached, greedy)])
    ids = [post(attached, greedy), post(attached, seeded)]
    wait_for(attached, ids, 200)
    kill_worker(attached)
    continued, refused = ended(attached, ids)
    assert text_of(continued) == text_of(before)
    assert refused["status"] == "failed"
    assert "this engine cannot go on exactly where it stopped" in refused["error"]["message"]
    assert "longhaul_forcing:ForcedPrefix" in attached.log.read_text()
