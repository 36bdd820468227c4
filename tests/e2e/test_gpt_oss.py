"""Scripted transcripts of the tiny gpt-oss through the API: real vLLM, and real tool servers behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.models.gpt_oss_folder import script
from tests.models.gpt_oss_script import tools_for
from tests.support.collector import Collector
from tests.support.longhaul import Longhaul
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Json = dict[str, Any]

MODEL = "tiny-gpt-oss"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def client(gpt_oss: Longhaul) -> Iterator[OpenAI]:
    with gpt_oss.client() as opened:
        yield opened


def asked(name: str) -> Json:
    question = next(step["user"] for step in script()[name]["steps"] if "user" in step)
    return {"model": MODEL, "tools": tools_for(script()[name]["offers"]), "input": question}


def test_the_tools_really_ran(client: OpenAI) -> None:
    response = client.responses.create(**asked("double"), include=["code_interpreter_call.outputs"])
    logs = [item.outputs for item in response.output if item.type == "code_interpreter_call"]
    assert [[output.logs.strip() for output in outputs] for outputs in logs if outputs] == [["42"]]
    web = client.responses.create(**asked("mountain"))
    [message] = [item for item in web.output if item.type == "message"]
    cited = [(note.type, note.url.rsplit("/", 1)[1], note.title) for note in message.content[0].annotations]
    assert cited == [("url_citation", "mountains.html", "Tallest mountains")] * 2
    books = client.responses.create(**asked("books"))
    assert [item.output for item in books.output if item.type == "mcp_call"] == ["Moby Dick", "The Life of the Bee"]


def test_the_spans_of_a_response_are_of_its_trace_and_the_engine_s_log_names_the_worker(
    gpt_oss: Longhaul, collector: Collector
) -> None:
    """tests/integration/generation/test_trace.py has later attempts, which get the same trace."""
    with gpt_oss.http() as http:
        trace = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        answer = http.post("/v1/responses", json={"model": MODEL, "input": "Hello!"}, headers=trace)
    response_id = answer.raise_for_status().json()["id"]
    (span,) = until_sync(lambda: collector.of(TRACE), what="its span")
    assert (span.name, span.parent_span_id.hex()) == ("llm_request", SPAN)
    ids = {each.key: each.value.string_value for each in span.attributes}
    assert ids["gen_ai.request.id"].startswith(f"{response_id}-1-")
    lines = [json.loads(line) for line in gpt_oss.log.read_text().splitlines() if line.startswith("{")]
    engines = {(line["process"], line["worker"]) for line in lines if line["logger"].startswith("vllm.v1.engine.core")}
    (claimed,) = [each for each in lines if each.get("response_id") == response_id and each["message"] == "claimed"]
    assert engines == {("EngineCore", claimed["worker"])}
