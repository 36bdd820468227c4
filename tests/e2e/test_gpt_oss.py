"""Scripted transcripts of the tiny gpt-oss through the API: real vLLM, and real tool servers behind."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from app.protocol.events.deltas import TurnEnd
from tests.models.gpt_oss_folder import ENGINE_ARGS, gpt_oss_folder, script
from tests.models.gpt_oss_script import SEEN, Point, points_of, tools_for
from tests.support import grammar, library_server
from tests.support.browser_server import browser_server
from tests.support.deltas import play
from tests.support.installations import running
from tests.support.longhaul import Longhaul, send_all
from tests.support.python_server import python_server
from tests.support.services import open_folder
from tests.support.waiting import until_sync
from workers.formats.answer import AnswerRules
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.router import CallableTools
from workers.formats.harmony.parser import HarmonyParser

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Json = dict[str, Any]

MODEL = "tiny-gpt-oss"
MODELS = """
[[models]]
name = "tiny-gpt-oss"
path = "{path}"
context_length = 4096
engine_args = {args}
default_sampling = {{ temperature = 0.0 }}

[[tool_servers]]
label = "python"
kind = "python"
url = "{python}"

[[tool_servers]]
label = "browser"
kind = "browser"
url = "{browser}"

[[tool_servers]]
label = "library"
command = {library}
"""
PAGE = """<html><title>Tallest mountains</title><p>Mount Everest is 8849 metres high</p>
<p>Mount Everest is the tallest mountain.</p><p>It is 8849 metres high.</p></html>"""

READY_SECONDS = 400.0
"""Its vocabulary is a large one."""

TRANSCRIPTS = [
    *("hi", "hello", "story", "unicode", "markdown", "announce", "person"),
    *("power", "double", "mountain", "book_whales", "books"),  # hosted tools
    *("weather_Oslo", "compare", "plan", "files", "mixed"),  # the client's tools
    *("name_Ada", "name_Eve"),  # several responses
]
"""Each in one of the MODES in turn: no mode changes what the engine is asked, and tests/engine has every turn."""


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def gpt_oss(library: Path) -> Iterator[Longhaul]:
    """`longhaul up` with the tiny gpt-oss, python in a sandbox, a browser over a folder, and the library."""
    with open_folder() as folder, contextlib.ExitStack() as servers:
        web = folder / "web"
        web.mkdir()
        (web / "mountains.html").write_text(PAGE)
        python = servers.enter_context(python_server(folder / "python.log"))
        browser = servers.enter_context(
            browser_server(folder / "browser.log", "--backend", "folder", "--folder", str(web))
        )
        models = folder / "models.toml"
        models.write_text(
            MODELS.format(
                path=gpt_oss_folder(),
                args=_toml(ENGINE_ARGS),
                python=python.url,
                browser=browser.url,
                library=json.dumps([sys.executable, library_server.__file__, str(library)]),
            )
        )
        made = Longhaul(folder / "home", models)
        made.ready_seconds = READY_SECONDS
        with running(made) as installation:
            yield installation


def _toml(values: Json) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + " }"


@pytest.fixture(scope="module")
def client(gpt_oss: Longhaul) -> Iterator[OpenAI]:
    with gpt_oss.client() as opened:
        yield opened


# -- what has to come ------------------------------------------------------------------------------------------


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
    if kind == "custom_tool_call":
        return kind, item["name"], item["input"]
    return kind, item["name"], item["arguments"]


def facts_of(points: Sequence[Point]) -> list[tuple[Any, ...]]:
    """Of one response's turns."""
    found: list[tuple[Any, ...]] = []
    for point in points:
        found += map(fact, said_at(point))
    return found


def said_at(point: Point) -> list[Json]:
    tools = point.request["tools"]
    hosted = hosted_tools_of(point.request, SEEN.listings, NameStyle.HARMONY)
    names = {kind: frozenset(tool["name"] for tool in tools if tool["type"] == kind) for kind in ("function", "custom")}
    parser = HarmonyParser(
        AnswerRules(tools=CallableTools(functions=names["function"], custom=names["custom"], hosted=hosted))
    )
    deltas = [*parser.feed(point.tokens).deltas, *parser.flush().deltas]
    output: list[Json] = play([*deltas, TurnEnd()], "cancel")[0].response["output"]  # the turn ends, not the response
    return output


def responses_in(name: str) -> list[list[Point]]:
    """The turns of a transcript, response by response: the server's own calls end none."""
    found: list[list[Point]] = []
    for point in points_of(name):
        if point.past:
            found[-1].append(point)
        else:
            found.append([point])
    return found


# -- asking ----------------------------------------------------------------------------------------------------

Ask = Callable[[OpenAI, Json], Any]


def sync(client: OpenAI, body: Json) -> Any:
    return client.responses.create(**body)


def stream(client: OpenAI, body: Json) -> Any:
    events = list(client.responses.create(**body, stream=True))
    grammar.check([event.model_dump(mode="json", exclude_unset=True) for event in events])
    return events[-1].response  # type: ignore[union-attr]


def background(client: OpenAI, body: Json) -> Any:
    created = client.responses.create(**body, background=True)
    return until_sync(lambda: (r := client.responses.retrieve(created.id)).status == "completed" and r, 120)


def resumed(client: OpenAI, body: Json) -> Any:
    """A reader that comes back behind every event gets the rest, byte for byte."""
    created = next(iter(client.responses.create(**body, background=True, stream=True)))
    url = f"{str(client.base_url).rstrip('/')}/responses/{created.response.id}"  # type: ignore[union-attr]
    whole = httpx.get(url, params={"stream": "true"}, timeout=120).content
    frames = [frame for frame in whole.split(b"\n\n") if frame.startswith(b"event:")]
    for after in range(len(frames)):
        rest = httpx.get(url, params={"stream": "true", "starting_after": after}, timeout=120).content
        assert whole.endswith(rest)
        assert rest.count(b"event:") == len(frames) - after - 1
    return client.responses.retrieve(created.response.id)  # type: ignore[union-attr]


MODES: list[Ask] = [sync, stream, background, resumed]


def named(value: Ask | str) -> str:
    return value if isinstance(value, str) else value.__name__


def play_through(client: OpenAI, name: str, ask: Ask) -> list[Any]:
    """The transcript's responses, each held against the script."""
    steps = script()[name]["steps"]
    given: list[Any] = []
    said: list[Any] = []
    fields: Json = {"model": MODEL, "tools": tools_for(script()[name]["offers"])}
    wanted = responses_in(name)
    for points in wanted:
        place = int(points[0].name.rsplit("[", 1)[1].rstrip("]"))
        response = ask(client, {**fields, "input": given or _asked(steps, place)})
        fields["previous_response_id"] = response.id
        said.append(response)
        made = [item for item in response.to_dict()["output"] if item["type"] != "mcp_list_tools"]
        assert list(map(fact, made)) == facts_of(points)
        assert response.status == "completed"
        assert {item.get("status", "completed") for item in made} == {"completed"}
        counts(response, points)
        given = _outputs(made, _told_behind(steps, int(points[-1].name.rsplit("[", 1)[1].rstrip("]"))))
    assert len(said) == len(wanted)
    return said


def _asked(steps: list[Json], place: int) -> str:
    text: str = next(step["user"] for step in reversed(steps[:place]) if "user" in step)
    return text


def _told_behind(steps: list[Json], place: int) -> list[Json]:
    found = []
    for step in steps[place + 1 :]:
        if "tool" not in step:
            break
        found.append(step["tool"])
    return found


def _outputs(items: list[Json], told: list[Json]) -> list[Json]:
    """What the client answers to calls of its functions."""
    outputs = []
    for item in items:
        if "call_id" in item:
            place = next(index for index, step in enumerate(told) if step["name"] == f"functions.{item['name']}")
            output = {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": told.pop(place)["text"]}
            outputs.append(output)
    return outputs


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


@pytest.mark.parametrize(("name", "ask"), list(zip(TRANSCRIPTS, cycle(MODES), strict=False)), ids=named)
def test_a_transcript_comes_out_exactly(client: OpenAI, name: str, ask: Ask) -> None:
    play_through(client, name, ask)


def test_the_tools_really_ran(client: OpenAI) -> None:
    body = {"model": MODEL, "tools": tools_for(["python"]), "include": ["code_interpreter_call.outputs"]}
    response = client.responses.create(**body, input=_asked(script()["double"]["steps"], 1))  # type: ignore[call-overload]
    logs = [item.outputs for item in response.output if item.type == "code_interpreter_call"]
    assert [[output.logs.strip() for output in outputs] for outputs in logs if outputs] == [["42"]]
    web = play_through(client, "mountain", sync)[0]
    [message] = [item for item in web.output if item.type == "message"]
    cited = [(note.type, note.url.rsplit("/", 1)[1], note.title) for note in message.content[0].annotations]
    assert cited == [("url_citation", "mountains.html", "Tallest mountains")] * 2
    books = play_through(client, "books", sync)[0]
    assert [item.output for item in books.output if item.type == "mcp_call"] == ["Moby Dick", "The Life of the Bee"]


def test_a_schema_holds_the_answer(client: OpenAI) -> None:
    [[point]] = responses_in("person")
    form = {"type": "json_schema", "name": "person", "schema": script()["person"]["schema"], "strict": True}
    response = client.responses.create(
        model=MODEL,
        input=_asked(script()["person"]["steps"], 1),
        text={"format": form},  # type: ignore[typeddict-item]
    )
    assert json.loads(response.output_text) == {"name": "Ada Lovelace", "birth_year": 1815, "city": "London"}
    assert response.usage is not None
    assert response.usage.output_tokens == len(point.tokens)


@pytest.mark.parametrize("limit", [1, 3, 8, 16, 25])
def test_a_cut_answer_is_incomplete_whatever_it_was_in(client: OpenAI, limit: int) -> None:
    body: Json = {"model": MODEL, "tools": tools_for(["functions", "python"]), "max_output_tokens": limit}
    for name in ("weather_Paris", "power", "announce"):
        response = client.responses.create(**body, input=_asked(script()[name]["steps"], 1))
        if response.status == "completed":  # it was done before
            continue
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens <= limit


REFUSED = [
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"reasoning": {"effort": "minimal"}}, "reasoning.effort"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_harmony_cannot_do_is_a_400(client: OpenAI, fields: Json, param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=MODEL, input="Hi", **fields)
    assert param in str(caught.value)


def test_the_messages_are_shown_and_may_be_sent_again(client: OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="My name is Ada.", extra_body={"enable_response_messages": True}
    ).to_dict()
    shown = [*first["input_messages"], *first["output_messages"]]  # type: ignore[misc]
    assert [(each["role"], each.get("channel")) for each in shown] == [
        ("system", None),
        ("user", None),
        ("assistant", "analysis"),
        ("assistant", "final"),
    ]
    second = client.responses.create(
        model=MODEL, input="What is my name?", extra_body={"previous_input_messages": shown, "cache_salt": "mine"}
    )
    assert second.output_text == "Your name is Ada."


@pytest.mark.parametrize("approve", [True, False])
def test_the_client_is_asked_where_it_wants_to_be(client: OpenAI, library: Path, approve: bool) -> None:
    tools = [{**tool, "require_approval": "always"} for tool in tools_for(["library"])]
    first = client.responses.create(model=MODEL, tools=tools, input=_asked(script()["book_whales"]["steps"], 1))  # type: ignore[arg-type]
    request = first.output[-1]
    assert request.type == "mcp_approval_request"
    assert (request.server_label, request.name) == ("library", "find_book")
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
    before = (library / "calls").read_text() if (library / "calls").exists() else ""
    second = client.responses.create(model=MODEL, tools=tools, input=[answer], previous_response_id=first.id)  # type: ignore[arg-type]
    after = (library / "calls").read_text() if (library / "calls").exists() else ""
    assert second.status == "completed"
    assert [item.type for item in second.output if item.type != "reasoning"] == [
        *["mcp_call"][: int(approve)],
        "message",
    ]
    assert after.removeprefix(before) == ("find_book whales\n" if approve else "")
    if approve:  # what else it could say it was not taught
        assert second.output_text == "The library has Moby Dick."


def test_kill_9_in_a_tool_call_loses_nothing_and_repeats_no_token(
    gpt_oss: Longhaul, client: OpenAI, library: Path
) -> None:
    calls = library / "calls"
    before = len(calls.read_text().splitlines()) if calls.exists() else 0
    (library / "hold").touch()
    try:
        body: Json = {"model": MODEL, "tools": tools_for(["library"]), "background": True}
        created = client.responses.create(**body, input=_asked(script()["book_whales"]["steps"], 1))
        until_sync(lambda: calls.exists() and len(calls.read_text().splitlines()) > before)
        send_all(gpt_oss.named(["celeryd"]), signal.SIGKILL)
    finally:
        (library / "hold").unlink()
    response = until_sync(
        lambda: (r := client.responses.retrieve(created.id)).status == "completed" and r, READY_SECONDS
    )
    made = [item for item in response.to_dict()["output"] if item["type"] != "mcp_list_tools"]
    [points] = responses_in("book_whales")
    assert list(map(fact, made)) == facts_of(points)
    counts(response, points)
