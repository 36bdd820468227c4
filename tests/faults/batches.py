"""Batches under faults: their files, who follows them, and what must hold of them in the end.

Every line has exactly one response and one result, results are numbered without gaps, counts are those of the rows,
and the files say what the rows say, in the order of the input.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson
from sqlalchemy import text

from app.protocol.status import BatchStatus
from tests.faults.fleet import Fleet
from tests.faults.polling import with_pause
from tests.support.waiting import until

ENDPOINT = "/v1/responses"
_HEAD = text("SELECT * FROM batches WHERE id = :id")
_LINES = text("SELECT batch_line, id, status, output, usage FROM responses WHERE batch_id = :id")
_RESULTS = text("SELECT line, number, custom_id, status, response_id FROM batch_results WHERE batch_id = :id")
_ANSWERS = ("completed", "incomplete")


def file_of(fleet: Fleet, prompts: Mapping[str, str]) -> bytes:
    """A batch's file: a line for each `custom_id` with its prompt."""
    lines = (
        {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": {"model": fleet.plan.model, "input": prompt}}
        for name, prompt in prompts.items()
    )
    return b"\n".join(map(orjson.dumps, lines))


async def create(fleet: Fleet, file: bytes) -> str:
    """Returns the id of the new batch."""
    sent = {"file": ("batch.jsonl", file)}
    made = await fleet.http.post(f"{fleet.urls[0]}/v1/files", data={"purpose": "batch"}, files=sent)
    body = {"input_file_id": made.json()["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    batch_id: str = (await fleet.http.post(f"{fleet.urls[0]}/v1/batches", json=body)).json()["id"]
    return batch_id


async def row(fleet: Fleet, batch_id: str) -> Any:
    (found,) = await fleet.db.execute(_HEAD, {"id": batch_id})
    return found


async def read(fleet: Fleet, path: str) -> httpx.Response:
    """What an API process answers once one does: they may be killed meanwhile."""

    async def answered() -> httpx.Response | None:
        try:
            answer = await fleet.http.get(f"{fleet.urls[0]}{path}")
        except httpx.TransportError:
            return None
        return answer if answer.status_code == httpx.codes.OK else None

    return await until(with_pause(answered), 90.0, f"an answer to GET {path}")


async def ended(fleet: Fleet, batch_id: str, seconds: float) -> Any:
    """The batch as its client sees it, once it has ended."""

    async def final() -> Any:
        found = (await read(fleet, f"/v1/batches/{batch_id}")).json()
        return found if BatchStatus(found["status"]).final else None

    return await until(with_pause(final), seconds, f"{batch_id} has ended")


async def followed(fleet: Fleet, batch_id: str) -> list[Any]:
    """The lines of a reader that begins again behind the last one that it has read, whenever it is cut."""
    seen: list[Any] = []
    while not seen or "batch" not in seen[-1]:
        path = f"{fleet.urls[0]}/v1/batches/{batch_id}/results?after={len(seen)}"
        try:
            async with fleet.http.stream("GET", path) as answer:
                async for line in answer.aiter_lines():
                    if line.strip():
                        seen.append(orjson.loads(line))
        except (httpx.TransportError, orjson.JSONDecodeError):
            await asyncio.sleep(0.2)
    return seen


async def violations(fleet: Fleet, batch: Any, prompts: Mapping[str, str]) -> list[str]:
    """What does not hold of a batch that has ended; `batch` is as its client sees it."""
    names, wanted = list(prompts), {"id": batch["id"]}
    responses = await fleet.db.execute(_LINES, wanted)
    results = await fleet.db.execute(_RESULTS, wanted)
    files = {
        kind: [] if (name := batch[f"{kind}_file_id"]) is None else await _lines_of(fleet, name)
        for kind in ("output", "error")
    }
    return [
        *_wrong_rows(names, responses, results),
        *_wrong_counts(batch, results),
        *_wrong_files(names, files, {each.id: each for each in responses}, results),
    ]


async def _lines_of(fleet: Fleet, file_id: str) -> list[Any]:
    content = (await read(fleet, f"/v1/files/{file_id}/content")).content
    return [orjson.loads(line) for line in content.splitlines()]


def _wrong_rows(names: list[str], responses: Any, results: Any) -> Iterator[str]:
    lines = Counter(each.batch_line for each in responses)
    yield from (f"line {line} has {count} responses" for line, count in lines.items() if count > 1)
    yield from (f"{each.id} has not ended" for each in responses if each.status in ("queued", "in_progress"))
    if sorted(each.line for each in results) != list(range(1, len(names) + 1)):
        yield f"{len(results)} results of {len(names)} lines"
    if sorted(each.number or 0 for each in results) != list(range(1, len(names) + 1)):
        yield "the numbers of the results have gaps"
    owners = {each.batch_line: each.id for each in responses}
    for each in results:
        if each.response_id != owners.get(each.line) or each.custom_id != names[each.line - 1]:
            yield f"the result of line {each.line} is another's"


def _wrong_counts(batch: Any, results: Any) -> Iterator[str]:
    found = {
        "total": len(results),
        "completed": sum(each.status in _ANSWERS for each in results),
        "failed": sum(each.status == "failed" for each in results),
    }
    if batch["request_counts"] != found:
        yield f"the batch counts {batch['request_counts']}, its rows are {found}"


def _wrong_files(names: list[str], files: Mapping[str, list[Any]], responses: Any, results: Any) -> Iterator[str]:
    of_line = {each.custom_id: each for each in results}
    for kind, lines in files.items():
        expected = [name for name in names if (of_line[name].status in _ANSWERS) is (kind == "output")]
        if [line["custom_id"] for line in lines] != expected:
            yield f"the {kind} file has {len(lines)} lines, not the {len(expected)} of the rows in their order"
    for line in files["output"]:
        body, stored = line["response"]["body"], responses[of_line[line["custom_id"]].response_id]
        if (body["id"], body["output"], body["usage"]) != (stored.id, stored.output, stored.usage):
            yield f"the output file says of '{line['custom_id']}' what its row does not"
