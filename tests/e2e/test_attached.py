"""A vLLM server that runs already: `vllm serve`, and `longhaul up --upstream` of the wheel alone, each killed in the
middle."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from openai import OpenAI

from tests.clients import test_openai
from tests.clients.target import Target, demo_script
from tests.e2e.test_main_job import events_of, raw_stream
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
LONG = {"ignore_eos": True, "max_output_tokens": 700}
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
EACH = 4
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


def read(longhaul: Longhaul, response_id: str) -> dict[str, Any]:
    with longhaul.http() as http:
        found: dict[str, Any] = http.get(f"/v1/responses/{response_id}").raise_for_status().json()
        return found


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def written(longhaul: Longhaul, ids: list[str], least: int) -> bool:
    """Whether each has so many characters."""
    return all(len(str(read(longhaul, each)["output"])) >= least for each in ids)


def ended(longhaul: Longhaul, ids: list[str]) -> list[dict[str, Any]]:
    def all_ended() -> list[dict[str, Any]] | None:
        found = [read(longhaul, each) for each in ids]
        return found if all(each["status"] not in ("queued", "in_progress") for each in found) else None

    return until_sync(all_ended, TAKEOVER_SECONDS, "all responses end", pause=0.5)


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
    until_sync(partial(written, attached, ids, 200), TAKEOVER_SECONDS, "all have begun", pause=0.2)
    kill_worker(attached)
    lengths = {each: len(str(read(attached, each)["output"])) for each in ids}
    more = lambda: any(len(str(read(attached, each)["output"])) > lengths[each] + 100 for each in ids)  # noqa: E731
    until_sync(more, TAKEOVER_SECONDS, "the next worker goes on", pause=0.2)
    server.kill()
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
        {"model": MODEL, "input": "Tell me a story.", "background": True, "stream": True, **KINDS[kind]}
        for kind in ("greedy", "seeded")
    )
    (before,) = ended(attached, [post(attached, greedy)])
    ids = [post(attached, greedy), post(attached, seeded)]
    until_sync(partial(written, attached, ids, 200), TAKEOVER_SECONDS, "both have begun", pause=0.2)
    kill_worker(attached)
    continued, refused = ended(attached, ids)
    assert text_of(continued) == text_of(before)
    assert refused["status"] == "failed"
    assert "this engine cannot go on exactly where it stopped" in refused["error"]["message"]
    assert "longhaul_forcing:ForcedPrefix" in attached.log.read_text()
