"""Scripted transcripts of the tiny gpt-oss through the API: real vLLM, and real tool servers behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from openai import OpenAI

from app.protocol.events.deltas import TurnEnd
from tests.models.gpt_oss_folder import script
from tests.models.gpt_oss_script import LISTINGS, Point, points_of, tools_for
from tests.support import grammar
from tests.support.collector import Collector
from tests.support.deltas import play
from tests.support.longhaul import Longhaul
from tests.support.waiting import until_sync
from workers.formats.answer import AnswerRules
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.router import CallableTools
from workers.formats.harmony.parser import HarmonyParser

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Json = dict[str, Any]

MODEL = "tiny-gpt-oss"
TRANSCRIPTS = ["unicode", "power", "mountain", "book_whales"]
"""Text, and each hosted tool. tests/engine has every turn, calls of the client's functions, cuts, schemas, refusals
and messages."""


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def client(gpt_oss: Longhaul) -> Iterator[OpenAI]:
    with gpt_oss.client() as opened:
        yield opened


def fact(item: Json) -> tuple[Any, ...]:
    """What of an output item the model wrote."""
    kind = item["type"]
    if kind == "message":
        return kind, item["phase"], "".join(part["text"] for part in item["content"])
    if kind == "reasoning":
        return kind, "".join(part["text"] for part in item["content"])
    if kind == "code_interpreter_call":
        return kind, item["code"]
    if kind == "web_search_call":
        return kind, item["action"]["type"]
    return kind, item["name"], item["arguments"]


def said_at(point: Point) -> list[Json]:
    """The items of a turn of the script."""
    hosted = hosted_tools_of(point.request, LISTINGS, NameStyle.HARMONY)
    none: frozenset[str] = frozenset()
    parser = HarmonyParser(AnswerRules(tools=CallableTools(functions=none, custom=none, hosted=hosted)))
    deltas = [*parser.feed(point.tokens).deltas, *parser.flush().deltas]
    output: list[Json] = play([*deltas, TurnEnd()], "cancel")[0].response["output"]  # the turn ends, not the response
    return output


def streamed(client: OpenAI, body: Json) -> Any:
    events = list(client.responses.create(**body, stream=True))
    grammar.check([event.model_dump(mode="json", exclude_unset=True) for event in events])
    return events[-1].response  # type: ignore[union-attr]


def asked(name: str) -> Json:
    question = next(step["user"] for step in script()[name]["steps"] if "user" in step)
    return {"model": MODEL, "tools": tools_for(script()[name]["offers"]), "input": question}


def check(response: Any, name: str) -> None:
    """Holds a response against the script. The server's own calls end none: the whole transcript is one response."""
    points = list(points_of(name))
    made = [item for item in response.to_dict()["output"] if item["type"] != "mcp_list_tools"]
    assert list(map(fact, made)) == [fact(item) for point in points for item in said_at(point)]
    assert response.status == "completed"
    assert {item.get("status", "completed") for item in made} == {"completed"}
    counts(response, points)


def counts(response: Any, points: Sequence[Point]) -> None:
    """Usage tells of every turn."""
    usage = response.usage.to_dict()
    lengths = [len(point.tokens) for point in points]
    assert usage["output_tokens"] == sum(lengths)
    if len(points) > 1:
        assert usage["output_tokens_details"]["output_tokens_per_turn"] == lengths
        assert len(usage["input_tokens_details"]["input_tokens_per_turn"]) == len(points)
        assert sum(usage["input_tokens_details"]["input_tokens_per_turn"]) == usage["input_tokens"]
        assert usage["output_tokens_details"]["tool_output_tokens"] > 0


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_comes_out_exactly(client: OpenAI, name: str) -> None:
    check(streamed(client, asked(name)), name)


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
