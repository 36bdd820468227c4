"""vLLM's own spans: those of a response are of the caller's trace, also after a kill -9 of its worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.collector import collecting
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import PATIENCE_SECONDS, until_sync

DEMO = Path(__file__).parents[2] / "config" / "models.toml"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TOKENS = 1500


@pytest.mark.vllm
@pytest.mark.long
def test_the_spans_of_a_response_are_of_its_trace_through_a_kill_9() -> None:
    with collecting() as collector, open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(_models(f'otlp_traces_endpoint = "{collector.url}"'))
        said = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "LONGHAUL_LOG_FORMAT": "json"}
        with running(Longhaul(folder / "home", models, VLLM_LOGGING_LEVEL="INFO", **said)) as talking:
            with httpx.Client(base_url=talking.url, timeout=PATIENCE_SECONDS) as http:
                model = http.get("/v1/models").json()["data"][0]["id"]
                asked = {"model": model, "input": "Hello!", "max_output_tokens": TOKENS, "ignore_eos": True}
                response_id = _begun(http, asked)
                first = until_sync(lambda: _line(talking, "claimed", response_id), what="the first claim")
                until_sync(lambda: _has_text(http, response_id), what="some output")
                os.kill(first["pid"], signal.SIGKILL)
                until_sync(
                    lambda: http.get(f"/v1/responses/{response_id}").json()["status"] == "incomplete", 180, "the end"
                )
            spans = until_sync(lambda: collector.of(TRACE), what="the span of the second attempt")
            lines = [json.loads(line) for line in talking.log.read_text().splitlines()]
    assert [(span.name, span.parent_span_id.hex()) for span in spans] == [("llm_request", SPAN)]
    ids = {each.key: each.value.string_value for each in spans[0].attributes}
    assert ids["gen_ai.request.id"].startswith(f"{response_id}-2-")
    engines = {(line["process"], line["worker"]) for line in lines if line["logger"].startswith("vllm.v1.engine.core")}
    workers = {line["worker"] for line in lines if line["message"] == "claimed"}
    assert engines == {("EngineCore", worker) for worker in workers} and len(workers) == 2


def _models(line: str) -> str:
    """The demo's models file, with one more argument of its engine."""
    demo = DEMO.read_text().replace('"./demo"', f'"{DEMO.parent / "demo"}"')
    head, found, tail = demo.partition("[models.engine_args]")
    assert found
    comment, end, arguments = tail.partition("\n")
    return f"{head}{found}{comment}{end}{line}\n{arguments}"


def _begun(http: httpx.Client, asked: dict[str, Any]) -> str:
    trace = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    answer = http.post("/v1/responses", json={**asked, "background": True}, headers=trace)
    assert answer.status_code == 200, answer.text
    response_id: str = answer.json()["id"]
    return response_id


def _has_text(http: httpx.Client, response_id: str) -> bool:
    return bool(http.get(f"/v1/responses/{response_id}").json()["output"])


def _line(talking: Longhaul, message: str, response_id: str) -> dict[str, Any] | None:
    text = talking.log.read_text()
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return next((each for each in lines if (each["message"], each.get("response_id")) == (message, response_id)), None)
