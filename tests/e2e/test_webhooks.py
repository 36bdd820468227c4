"""Webhooks and the event feed by the official client alone, while everything is killed.

WEBHOOKS=2000 .venv/bin/python -m pytest tests/e2e/test_webhooks.py    # as many responses; 300 by default
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import sleep
from typing import Any, cast

import httpx2
import openai
import pytest
from openai import OpenAI, Stream

from app.local.ports import free_port
from config.settings import CHECKOUT
from tests.e2e.conftest import TO_HERE, Keyed, read
from tests.support.installations import running
from tests.support.little_web import LittleWeb
from tests.support.longhaul import Longhaul, send_all
from tests.support.services import open_folder
from tests.support.waiting import until_sync
from tests.support.webhooks import Receiver

PAGE = CHECKOUT / "docs" / "webhooks.md"
MODEL = "scripted"
COUNT = int(os.environ.get("WEBHOOKS", "300"))
LINES = 20
KILLED = ("celeryd", "longhaul api", "longhaul maintenance", "postgres")
DEAD_SECONDS = 2.0 if COUNT < 1000 else 60.0
"""How long the receiver is away."""
TYPES = ("completed", "failed", "cancelled", "incomplete")
BATCH_TYPES = ("completed", "failed", "expired", "cancelled")
EVENT_TYPES: Any = [*(f"response.{each}" for each in TYPES), *(f"batch.{each}" for each in BATCH_TYPES)]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def own(scripted_models: Path) -> Iterator[Longhaul]:
    """`longhaul up` that may send to this machine."""
    with open_folder() as folder, running(Longhaul(folder / "home", scripted_models, **TO_HERE)) as installation:
        yield installation


class Reader:
    """Reads the feed in a thread, is cut again and again, and resumes behind the last event that it has."""

    def __init__(self, client: OpenAI) -> None:
        self._client = client
        self._done = threading.Event()
        self.events: list[Json] = []
        self.cuts = -1
        """Streams behind the first one."""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._done.is_set():
            with suppress(openai.APIError, httpx2.HTTPError):
                self._follow()
            self._done.wait(0.05)

    def _follow(self) -> None:
        after = {"after": self.events[-1]["id"]} if self.events else {}
        options: Any = {"params": {"stream": "true", **after}}
        answer = self._client.get(
            "/events", cast_to=httpx2.Response, stream=True, stream_cls=Stream[Any], options=options
        )
        before = len(self.events)
        self.cuts += 1
        with closing(cast(httpx2.Response, answer)) as opened:
            for line in opened.iter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    if len(self.events) - before > COUNT // 3 or self._done.is_set():
                        return


def create_batch(client: OpenAI) -> str:
    body = {"model": MODEL, "input": "/count 3"}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/responses", "body": body} for number in range(LINES)
    ]
    file = client.files.create(file=("a.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h").id


def kill(own: Longhaul, word: str) -> None:
    """kill -9, and waits until everything is there again."""
    found = own.named([word])
    assert found
    send_all(found, signal.SIGKILL)
    with own.http() as http:

        def is_ready() -> bool:
            with suppress(Exception):
                return bool(http.get("/health/ready", timeout=2).json()["status"] == "ready")
            return False

        until_sync(is_ready, 120, "everything is there again", pause=0.2)


def receive(web: LittleWeb, secret: str, known: Receiver | None = None) -> Receiver:
    """Takes four events of five at the first try; of `known`, goes on with what that had."""
    receiver = Receiver(web, secret)
    if known is not None:
        receiver.got, receiver.tried, receiver.events, receiver.forged = (
            known.got, known.tried, known.events, known.forged
        )  # fmt: skip
    receiver.fails = (
        lambda event_id: (  # type: ignore[method-assign]
            500 if int(event_id[-2:], 16) % 5 == 0 and receiver.tried[event_id] == 1 else 200
        )
    )
    return receiver


@pytest.mark.long
def test_every_end_is_told_at_least_once_with_one_id_while_everything_is_killed(own: Longhaul) -> None:
    with (
        ExitStack() as stack,
        own.client().with_options(max_retries=30, timeout=30) as client,
        closing(Reader(client.with_options(max_retries=0, timeout=3))) as reader,
        ThreadPoolExecutor(4) as pool,
    ):
        alive = stack.enter_context(ExitStack())
        web = alive.enter_context(LittleWeb())
        endpoint = client.webhooks.create(name="jobs", url=f"{web.url}/hook", event_types=EVENT_TYPES)
        receiver = receive(web, endpoint.signing_secret)
        batch = create_batch(client)

        def ask(number: int) -> None:
            client.responses.create(model=MODEL, input=f"/count {number % 7}", background=True)

        for part, word in enumerate(KILLED):
            asking = [pool.submit(ask, number) for number in range(part, COUNT, len(KILLED))]
            until_sync(lambda part=part: len(receiver.got) > part * 10, 120, "some were told")
            kill(own, word)
            for each in asking:
                each.result()
        alive.close()  # nobody listens
        sleep(DEAD_SECONDS)
        web = stack.enter_context(LittleWeb(port=web.port))
        receiver = receive(web, endpoint.signing_secret, receiver)

        until_sync(lambda: client.batches.retrieve(batch).status == "completed", 120, "the batch has ended", pause=0.5)
        unfinished = "SELECT count(*) FROM responses WHERE finished_at IS NULL"
        until_sync(lambda: read(own, unfinished)[0]["count"] == 0, 240, "all have ended", pause=0.5)
        rows = read(
            own,
            "SELECT event_id, id, 'response.' || status AS type FROM responses WHERE event_id IS NOT NULL UNION ALL"
            " SELECT event_id, id, 'batch.' || status FROM batches WHERE event_id IS NOT NULL ORDER BY 1",
        )
        assert len(rows) >= COUNT + 1

        def all_told() -> bool:
            path = f"/webhook_endpoints/{endpoint.id}/deliveries"
            for row in read(own, "SELECT event_id FROM webhook_deliveries WHERE status = 'pending' AND tries > 1"):
                client.post(f"{path}/{row['event_id']}/replay", cast_to=object)  # its next try is minutes away
            return len(receiver.got) == len(rows)

        until_sync(all_told, 240, lambda: f"{len(receiver.got)} of {len(rows)} were told", pause=1.0)
        until_sync(lambda: len(reader.events) >= len(rows), 60, "the reader has come to the end")
        test = client.webhooks.test(endpoint.id, event_type="batch.completed")
        assert test.status_code in (200, 500)
        client.webhooks.delete(endpoint.id)

    truth = [(row["event_id"], row["type"], row["id"]) for row in rows]
    taken = receiver.got.values()
    sys.stdout.write(
        f"{len(rows)} ends; {sum(taken)} deliveries taken, {sum(each > 1 for each in taken)} of them twice or more,"
        f" {len(receiver.forged)} forged; the feed has {len(reader.events)} events, read through {reader.cuts} cuts\n"
    )
    assert receiver.forged == []
    told = {event["data"]["id"]: event["id"] for event in receiver.events}
    ids = Counter(event["data"]["id"] for event in {each["id"]: each for each in receiver.events}.values())
    assert set(ids.values()) == {1}, "one id for each end"
    assert {response_id: told.get(response_id) for _, _, response_id in truth} == {each[2]: each[0] for each in truth}
    assert [(event["id"], event["type"], event["data"]["id"]) for event in reader.events] == truth
    assert reader.cuts >= 2


def test_the_example_of_the_page_runs(pair: Keyed, capsys: pytest.CaptureFixture[str]) -> None:
    example = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    here_for = {"127.0.0.1:8000": f"127.0.0.1:{pair.port}", "unused": pair.key}
    for written, here in {**here_for, "longhaul-demo": MODEL, "9000": str(free_port())}.items():
        assert written in example
        example = example.replace(written, here)
    exec(compile(example, str(PAGE), "exec"), {})
    event_id, kind, *text = capsys.readouterr().out.split()
    assert event_id.startswith("evt_") and kind == "response.completed" and text
