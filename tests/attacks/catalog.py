"""All attacks, one of each kind: bodies, prompts, readers, storms, and what one tenant does to others."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import re
from collections.abc import Sequence
from typing import Any

import zstandard

from app.access.secret import new_secret
from tests.attacks.attack import Attack, Demand, Run
from tests.attacks.projects import UNTRUSTED
from tests.attacks.target import Json, Target
from tests.support import pdfs

MEGABYTE = 1_000_000
TURN_SECONDS = 20.0
"""More than a response of a long queue takes (15 s): whoever comes waits until one of them leaves its slot."""
HOLD_SECONDS = 20.0
"""How long an attack holds what it has, in its full form: longer than what runs is left alone before it may yield."""
TOOLS = 1000
"""Just within the bound of one request."""
_HANGS: Json = {"input": "/hang 1", "max_output_tokens": 3000, "ignore_eos": True}
_WORDS: Json = {"input": "/repeat 500 word ", "max_output_tokens": None}
_BATCH: Json = {"endpoint": "/v1/responses", "completion_window": "24h"}
_ENDLESS: Json = {"max_output_tokens": 2**31 - 1, "ignore_eos": True, "input": "/repeat 300000 x"}

LARGE = Demand(large=True)
CONTEXTS = Demand(large=True, contexts=True)
WALLED = Demand(is_walled=True)
FLOOD = Demand(connections=64, readers=64)


def _message(text: str, role: str = "user") -> Json:
    return {"role": role, "content": text}


_PAGE = json.dumps({"items": [_message("x" * 340_000)] * 20}).encode()
"""7 MB of items for a conversation."""


# -- bytes and bodies ------------------------------------------------------------------------------------------------


async def half_sent_bodies(target: Target, count: int) -> None:
    """Each connection announces 8 MB and sends half of them."""
    beginning = target.request("POST /v1/responses", "Content-Length: 8000000", body=b"a" * 4 * MEGABYTE)
    await target.repeat(count, lambda _: target.raw(beginning), parallel=count)


async def tiny_chunks(target: Target, count: int) -> None:
    """A chunk for each byte."""
    head = target.request("POST /v1/responses", "Transfer-Encoding: chunked")
    await target.raw(head, *[b"1\r\n \r\n" * 10_000] * count, b"0\r\n\r\n")


async def compressed_bombs(target: Target, count: int) -> None:
    """100 MB of blanks in 100 kB and less."""
    blanks = b" " * 100 * MEGABYTE
    packed = gzip.compress(blanks, 1)
    await target.body(zstandard.compress(blanks), **{"content-encoding": "zstd"})
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip")[:count]:
        await target.body(packed, **{"content-encoding": encoding})


async def many_keys(target: Target, count: int) -> None:
    """Keys that differ, in the body and in metadata, and one that is repeated."""
    keys = ",".join(f'"k{number}":1' for number in range(count))
    for fields in (keys, f'"metadata":{{{keys}}}', ",".join(['"user":"a"'] * count)):
        await target.body(f'{{"model":"{target.model}","max_output_tokens":4,"input":"x",{fields}}}'.encode())


# -- prompts ---------------------------------------------------------------------------------------------------------


async def references(target: Target, count: int) -> None:
    """References to `count` stored messages of 4 MB, and as many to one of them."""
    found: list[Json] = []
    for _ in range(count):
        stored = await target.create(input=[_message("x" * 4 * MEGABYTE)], background=True)
        listed = await target.send("GET", f"/v1/responses/{stored['id']}/input_items")
        found.append({"type": "item_reference", "id": listed["data"][0]["id"]})
    for background in (True, False):
        for items in (found, found[:2], found[:1] * 300):
            await target.create(input=items, background=background)
    await target.send("POST", "/v1/conversations", json={"items": found})


async def system_messages(target: Target, count: int) -> None:
    """Prompts of many short messages: more than a request may have, and just as many."""
    for role in ("system", "developer"):
        for items in (count, min(count, 9_900)):
            await target.create(input=[*[_message("s" * 20, role)] * items, _message("x")])


async def count_flood(target: Target, count: int) -> None:
    """`input_tokens` of 7.5 MB, several at once."""
    body = {"model": target.model, "input": "ab " * (5 * MEGABYTE // 2)}
    await target.repeat(count, lambda _: target.send("POST", "/v1/responses/input_tokens", json=body), parallel=3)


async def thousands_of_tools(target: Target, count: int) -> None:
    """More tools than a request may have, just as many, and one that is as large as a body may be."""

    def function(number: int, size: int = 20) -> Json:
        parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "d" * size}}}
        return {"type": "function", "name": f"f{number}", "parameters": parameters}

    for tools in (count, min(count, TOOLS)):
        await target.create(tools=[function(number) for number in range(tools)])
    await target.create(tools=[function(0)] * min(count, TOOLS))
    await target.create(tools=[function(0, 7 * MEGABYTE)], tool_choice="required")


# -- readers and storms ----------------------------------------------------------------------------------------------


async def slow_pollers(target: Target, count: int) -> None:
    """`count` connections that ask for an answer of 7 MB four times each, and never read."""
    path = await _conversation(target, 1)
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for _ in range(count):
            _reader, writer = await stack.enter_async_context(target.connection(slow=True))
            writer.write(target.request(f"GET {path}/items?limit=100") * 4)
            ports.append(int(writer.get_extra_info("sockname")[1]))
        await target.cut_off(*ports)


async def cancel_storm(target: Target, count: int) -> None:
    """Responses that hang, each cancelled several times at once."""

    async def one(_: int) -> None:
        path = f"/v1/responses/{(await target.create(background=True, **_HANGS))['id']}/cancel"
        await asyncio.gather(*(target.send("POST", path) for _ in range(3)))

    await target.repeat(count, one)


# -- one tenant on others --------------------------------------------------------------------------------------------


async def guessed_keys(target: Target, count: int) -> None:
    """Keys of the right form that nobody has."""
    await target.repeat(count, lambda _: target.create({"authorization": f"Bearer {new_secret()}"}), parallel=64)


async def conversations_without_end(target: Target, count: int) -> None:
    """`count` conversations of 7 MB, which nobody deletes."""
    await target.repeat(count, lambda _: target.body(_PAGE, "/v1/conversations"), parallel=8)


async def _conversation(target: Target, pages: int) -> str:
    """The path of a new conversation with so many times 7 MB."""
    path = f"/v1/conversations/{(await target.send('POST', '/v1/conversations', json={}))['id']}"
    for _ in range(pages):
        await target.body(_PAGE, f"{path}/items")
    return path


async def large_pages(target: Target, count: int) -> None:
    """Pages of 34 MB, 24 at once."""
    path = await _conversation(target, 5 if count > 24 else 1)
    await target.repeat(count, lambda _: target.send("GET", f"{path}/items?limit=100"), parallel=24)
    await target.send("DELETE", path)


async def many_readers(target: Target, count: int) -> None:
    """`count` streams of one response that does not end, each on a connection of its own."""
    async with target.connection() as (reader, writer):
        writer.write(target.stream(background=True, **_HANGS))
        created = await reader.readuntil(b"\n\n")
    path = f"/v1/responses/{re.findall(rb'resp_[0-9a-zA-Z_]+', created)[0].decode()}"
    await _many_connections(target, count, target.request(f"GET {path}?stream=true"))
    await target.send("POST", f"{path}/cancel")


async def followed_batches(target: Target, count: int) -> None:
    """Batches of more lines than end meanwhile, and a crowd that follows the results of one."""
    body = {"model": target.model, "input": "Hello!", "max_output_tokens": 1}
    sent = {"method": "POST", "url": "/v1/responses", "body": body}
    lines = [json.dumps({"custom_id": str(number), **sent}) for number in range(max(8 * count, 2_000))]
    file = await _batch_file(target, lines)
    made = [await target.send("POST", "/v1/batches", json={**_BATCH, "input_file_id": file}) for _ in range(8)]
    try:
        await _many_connections(target, count, target.request(f"GET /v1/batches/{made[0]['id']}/results"))
    finally:
        for batch in made:
            await target.send("POST", f"/v1/batches/{batch['id']}/cancel")


async def _batch_file(target: Target, lines: Sequence[str]) -> str:
    """Its id."""
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", "\n".join(lines).encode())}}
    return str((await target.send("POST", "/v1/files", **form))["id"])


async def waiting_polls(target: Target, count: int) -> None:
    """`count` polls that wait for the end of one response, and are all answered at once."""
    begun = await target.create(background=True, **_HANGS)
    path = f"/v1/responses/{begun['id']}"
    polls = asyncio.ensure_future(_many_connections(target, count, target.request(f"GET {path}?wait=60")))
    await asyncio.sleep(HOLD_SECONDS / 4 if count > 100 else 0)
    await target.send("POST", f"{path}/cancel")
    await polls


async def failed_batches(target: Target, count: int) -> None:
    """`count` batches of lines that are all wrong in many words, and pages of all their errors, six at once."""
    wrong = json.dumps({"custom_id": "c" * 200, "method": "POST", "url": "/v1/responses", "body": {"b" * 60_000: 1}})
    file = await _batch_file(target, [wrong] * 100)
    for _ in range(count):
        made = await target.send("POST", "/v1/batches", json={**_BATCH, "input_file_id": file})
        await target.send("GET", f"/v1/batches/{made.get('id')}?wait=60")
    await target.repeat(count, lambda _: target.send("GET", "/v1/batches?limit=100"), parallel=6)


async def foreground_flood(target: Target, count: int) -> None:
    """Streams that do not end, in the foreground: what is kept for the foreground must not be one project's."""
    await _many_connections(target, count, target.stream(**_HANGS))


async def _many_connections(target: Target, count: int, request: bytes) -> None:
    """Opens all of them before it reads any answer: the server closes those that are quiet for long."""
    async with contextlib.AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []

        async def ask(_: int) -> None:
            reader, writer = await stack.enter_async_context(target.connection())
            writer.write(request)
            readers.append(reader)

        await target.repeat(count, ask, parallel=500)
        await asyncio.gather(*(target.read_answer(reader) for reader in readers))


def _backlog(**fields: Any) -> Run:
    """Background responses that are cancelled once another tenant's has ended and HOLD_SECONDS have passed."""

    async def run(target: Target, count: int) -> None:
        created: list[Json] = []

        async def create(_: int) -> None:
            created.append(await target.create(background=True, **fields))

        try:
            await target.repeat(count, create, parallel=64)
            await target.create(target.projects.bystander.headers)
            await asyncio.sleep(HOLD_SECONDS if count > 100 else 0)
        finally:
            await target.projects.cancel(created)

    return run


async def post_flood(target: Target, count: int) -> None:
    await target.repeat(count, lambda _: target.create(), parallel=64)


async def refusal_storm(target: Target, count: int) -> None:
    """A tenant that is over its limits and repeats without waiting."""
    await target.repeat(count, lambda _: target.create(background=True), parallel=64)


async def slow_pdfs(target: Target, count: int) -> None:
    """Six requests at once, with 8 PDFs each. A thousand operations of text take 14 ms to read."""

    def files(operations: int) -> list[Json]:
        data = [base64.b64encode(pdfs.endless(operations + number)).decode() for number in range(8)]
        parts = [{"type": "input_file", "filename": "a.pdf", "file_data": each} for each in data]
        return [{"role": "user", "content": parts}]

    await target.create(input=files(1))
    slow = files(1000 * count)
    await target.repeat(6, lambda _: target.create(input=slow, background=True))


async def almost_boundaries(target: Target, count: int) -> None:
    """Uploads of 4 MB in which every line is almost a boundary, and one whose header has a parameter of 60 kB."""
    head = b'--a\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    tail = b'\r\n--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--a--\r\n'
    body, kind = head + b"\r\n--a-" * 600_000 + tail, "multipart/form-data; boundary=a"
    long = {"content-type": kind + '; x="' + ";" * 60_000 + '"'}
    await target.send("POST", "/v1/files", content=head + tail, headers=long)

    async def upload(_: int) -> None:
        await target.send("POST", "/v1/files", content=body, headers={"content-type": kind})

    await target.repeat(count, upload, parallel=4)


_OK = frozenset({"200"})
_TOOLS = frozenset({"200", "400 input", "400 tools"})
_HELD = Demand(connections=200, readers=200, large=True)
_OWN: Json = {"demand": WALLED, "limits": UNTRUSTED}
_LIMITED: Json = {**_OWN, "full_only": {"429"}}
_LONG: Json = {"demand": FLOOD, "seconds": 180}
_ENCODINGS = frozenset({"400 invalid_encoding", "413", "415"})
_KEYS = frozenset({"200", "400 invalid_value", "400 metadata"})
_REFERENCES = frozenset({"200", "400 input", "400 items"})

ATTACKS = (
    # name, what it is about, the program, how much of it in the full and in the small form, answers
    Attack("half-sent-bodies", "time", half_sent_bodies, 200, 4, {"408"}, {"429"}, _HELD),
    Attack("tiny-chunks", "chunked encoding", tiny_chunks, 200, 3, {"400 invalid_json"}, demand=LARGE),
    Attack("compressed-bombs", "compressed bodies", compressed_bombs, 6, 6, _ENCODINGS, demand=LARGE),
    Attack("many-keys", "JSON", many_keys, 300_000, 5000, _KEYS, demand=LARGE),
    Attack("references", "amplification", references, 16, 4, _REFERENCES, demand=CONTEXTS),
    Attack("system-messages", "prompts", system_messages, 49_000, 2000, _OK, {"400 input"}, LARGE),
    Attack("count-flood", "input_tokens", count_flood, 12, 1, _OK, demand=LARGE),
    Attack("thousands-of-tools", "tools", thousands_of_tools, 20_000, 500, _TOOLS, demand=LARGE),
    Attack("slow-pollers", "readers that do not read", slow_pollers, 100, 4, {"200", "cut off"}, demand=_HELD),
    Attack("cancel-storm", "cancelling", cancel_storm, 300, 8, _OK),
    Attack("post-flood", "requests", post_flood, 3000, 50, _OK, demand=FLOOD),
    Attack("guessed-keys", "keys that nobody has", guessed_keys, 5000, 50, {"401"}, demand=FLOOD),
    Attack("refusal-storm", "limits", refusal_storm, 5000, 200, {"200", "429"}, demand=FLOOD, limits=UNTRUSTED),
    Attack("outputs-without-end", "outputs", _backlog(**_ENDLESS), 300, 8, _OK, demand=LARGE, seconds=180),
    Attack("full-engine", "slots", _backlog(**_HANGS), 400, 20, _OK, **_LONG),
    Attack("long-queue", "turns", _backlog(**_WORDS), 10_000, 50, _OK, latency=TURN_SECONDS, **_LONG),
    Attack("conversations-without-end", "stored bytes", conversations_without_end, 340, 2, _OK, **_LIMITED),
    Attack("large-pages", "large answers", large_pages, 200, 4, _OK, **_OWN),
    Attack("many-readers", "readers and connections", many_readers, 4200, 20, _OK, **_LIMITED),
    Attack("slow-pdfs", "files", slow_pdfs, 300, 1, _OK, {"503"}, LARGE, seconds=90),
    Attack("almost-boundaries", "forms", almost_boundaries, 24, 2, {"200", "415"}, demand=LARGE),
    Attack("followed-batches", "batches", followed_batches, 1200, 10, _OK, **_LONG),
    Attack(
        "failed-batches", "errors of batches", failed_batches, 60, 3, {"200", "failed None"}, demand=LARGE, seconds=180
    ),
    Attack("waiting-polls", "long polls", waiting_polls, 3000, 20, _OK, demand=WALLED, seconds=180),
    Attack("foreground-flood", "the foreground's places", foreground_flood, 500, 20, _OK, **_LIMITED),
)
