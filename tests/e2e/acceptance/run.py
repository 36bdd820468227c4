"""The acceptance of batches and windows: what a user does, with the official client alone, and what must be true."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, cast

import httpx2
from openai import OpenAI, Stream
from openai.types import Batch
from openai.types.responses import Response

from tests.e2e.acceptance.questions import CHAT, RESPONSES, Json, Question, bad_lines, line, repeated

WINDOWS = {"soonest": 2 * 3600, "2h": 2 * 3600, "8h": 8 * 3600}
"""Seconds in which a response must have ended."""
WAIT = {"wait": 30}


@dataclass(frozen=True, slots=True)
class Plan:
    model: str
    questions: Sequence[Question]
    slow: str
    """A prompt whose answer takes its time: of the batch that is cancelled."""
    lines: int
    """Of both batches together."""
    cancelled: int
    """Lines of the batch that is cancelled."""
    windowed: int
    """Responses with windows."""
    cut: int
    """Results after which a reader is cut, and resumes."""


@dataclass
class Acceptance:
    """`kill` kills a worker with SIGKILL; `tell` gets a line for each thing that was done."""

    client: OpenAI
    plan: Plan
    kill: Callable[[], None]
    tell: Callable[[str], None]
    _begun: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Raises AssertionError for what is not as it must be."""
        self._refuse_bad_lines()
        self._follow_two_batches()
        self._cancel_and_retry()
        self._meet_windows()

    def _say(self, what: str) -> None:
        self.tell(f"{time.monotonic() - self._begun:6.1f} s  {what}")

    # -- a file with bad lines -------------------------------------------------------------------------------------

    def _refuse_bad_lines(self) -> None:
        """All bad lines are named, and nothing runs."""
        bad = bad_lines(self.plan.model)
        lines, wrong = [], set()
        for number, each in enumerate(bad, 1):
            good = line(f"good-{number}", RESPONSES, {"model": self.plan.model, "input": "Hi"})
            lines += [json.dumps(good), each]
            wrong.add(len(lines))
        batch = self._ended(self._created("\n".join(lines).encode(), RESPONSES))
        assert batch.status == "failed"
        assert batch.errors is not None and batch.errors.data is not None
        assert {each.line for each in batch.errors.data} == wrong
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        self._say(f"a batch with {len(bad)} bad lines: failed, {len(batch.errors.data)} lines named")

    # -- two batches, a killed worker ------------------------------------------------------------------------------

    def _follow_two_batches(self) -> None:
        begun = time.monotonic()
        each = self.plan.lines // 2
        files = {endpoint: repeated(self.plan.questions, each) for endpoint in (RESPONSES, CHAT)}
        batches = {endpoint: self._created(self._file(asked, endpoint), endpoint) for endpoint, asked in files.items()}
        self._say(f"two batches of {each} lines, {' and '.join(batches)}")
        with ThreadPoolExecutor(2) as pool:
            following = {
                endpoint: pool.submit(self._followed, batch.id, self.kill if endpoint == RESPONSES else None)
                for endpoint, batch in batches.items()
            }
            for endpoint, results in following.items():
                self._check_results(self._ended(batches[endpoint]), files[endpoint], results.result())
        seconds = time.monotonic() - begun
        self._say(f"both completed, every answer right; {self.plan.lines} lines in {seconds:.1f} s")

    def _file(self, asked: Sequence[Question], endpoint: str) -> bytes:
        lines = [line(str(place), endpoint, each.body(endpoint, self.plan.model)) for place, each in enumerate(asked)]
        return "\n".join(map(json.dumps, lines)).encode()

    def _followed(self, batch_id: str, in_the_middle: Callable[[], None] | None) -> list[Json]:
        """The results of the batch as they end; the reader is cut again and again, and goes on behind the last one."""
        seen: list[Json] = []
        cuts = 0
        while True:
            for read, each in enumerate(self._results(batch_id, len(seen)), 1):
                if "batch" in each:
                    self._say(f"{batch_id} followed: {len(seen)} results, cut and resumed {cuts} times")
                    return seen
                seen.append(each)
                if in_the_middle is not None and len(seen) >= self.plan.lines // 8:
                    in_the_middle()
                    in_the_middle = None
                    self._say(f"killed a worker after {len(seen)} results")
                if read == self.plan.cut:
                    cuts += 1
                    break

    def _results(self, batch_id: str, after: int) -> Iterator[Json]:
        answer = cast(
            httpx2.Response,
            self.client.get(
                f"/batches/{batch_id}/results",
                cast_to=httpx2.Response,
                stream=True,
                stream_cls=Stream[Any],
                options={"params": {"after": after}},
            ),
        )
        try:
            yield from (json.loads(each) for each in answer.iter_lines() if each.strip())
        finally:
            answer.close()

    def _check_results(self, batch: Batch, asked: Sequence[Question], followed: Sequence[Json]) -> None:
        """Every line has its answer once: in what was followed, in the file, in the counts and in the usage."""
        assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None), batch
        counts, usage = batch.request_counts, batch.usage
        assert counts is not None and usage is not None
        assert (counts.total, counts.completed, counts.failed) == (len(asked), len(asked), 0)
        assert [each.pop("number") for each in followed] == list(range(1, len(asked) + 1))
        assert batch.output_file_id is not None
        output = [json.loads(each) for each in self.client.files.content(batch.output_file_id).iter_lines()]
        assert [each["custom_id"] for each in output] == [str(place) for place in range(len(asked))]
        assert output == sorted(followed, key=lambda each: int(each["custom_id"]))
        for question, each in zip(asked, output, strict=True):
            assert each["response"]["status_code"] == 200 and question.is_answered_by(each["response"]["body"]), each
        used = [each["response"]["body"]["usage"] for each in output]
        assert usage.total_tokens == sum(each["total_tokens"] for each in used)

    # -- cancelled, retried ----------------------------------------------------------------------------------------

    def _cancel_and_retry(self) -> None:
        slow = Question(self.plan.slow)
        batch = self._created(self._file([slow] * self.plan.cancelled, RESPONSES), RESPONSES)
        next(self._results(batch.id, 0))
        begun = time.monotonic()
        self.client.batches.cancel(batch.id)
        batch = self._ended(batch)
        seconds = time.monotonic() - begun
        counts = batch.request_counts
        assert batch.status == "cancelled" and counts is not None and batch.errors is not None
        left = counts.total - counts.completed
        assert left > 0 and counts.completed > 0, counts
        assert self._lines_of(batch.output_file_id) == counts.completed
        assert self._lines_of(batch.error_file_id) == left
        self._say(f"cancelled a batch of {counts.total}: {counts.completed} kept, files there after {seconds:.1f} s")
        retry = self.client.post(f"/batches/{batch.id}/retry_failed", cast_to=Batch)
        again = self._ended(retry)
        assert again.status == "completed" and again.request_counts is not None
        assert again.request_counts.completed == left
        self._say(f"retried the {left} that had no answer: all completed")

    def _lines_of(self, file_id: str | None) -> int:
        assert file_id is not None
        return len(self.client.files.content(file_id).text.splitlines())

    # -- windows ---------------------------------------------------------------------------------------------------

    def _meet_windows(self) -> None:
        asked = repeated(self.plan.questions, self.plan.windowed)
        windows = [window for window, _ in zip(cycle(WINDOWS), asked, strict=False)]
        with ThreadPoolExecutor(8) as pool:
            sent = list(pool.map(self._sent, asked, windows, range(len(asked))))
            self._say(f"{len(sent)} background responses with windows and two continuation_ids")
            ended = list(pool.map(self._answered, [each.id for each in sent]))
        late = 0.0
        for question, window, response in zip(asked, windows, ended, strict=True):
            assert response.status == "completed" and question.is_answered_by(response.model_dump()), response
            assert response.completed_at is not None
            took = response.completed_at - response.created_at
            assert took <= WINDOWS[window], f"{response.id} missed its window"
            late = max(late, took)
        self._say(f"all {len(ended)} in time; the last one took {late:.0f} s")

    def _sent(self, question: Question, window: Any, number: int) -> Response:
        options: Any = {"completion_window": window}
        if number % 4 < 2:
            options["continuation_id"] = f"thread-{number % 4}"
        body = question.body(RESPONSES, self.plan.model)
        return self.client.responses.create(background=True, background_options=options, **body)

    def _answered(self, response_id: str) -> Response:
        while True:
            response = self.client.responses.retrieve(response_id, extra_query=WAIT)
            if response.status not in ("queued", "in_progress"):
                return response

    # -- batches ---------------------------------------------------------------------------------------------------

    def _created(self, data: bytes, endpoint: Any) -> Batch:
        file = self.client.files.create(file=("requests.jsonl", data), purpose="batch")
        return self.client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")

    def _ended(self, batch: Batch) -> Batch:
        retrieve = partial(self.client.batches.retrieve, batch.id, extra_query=WAIT)
        while (batch := retrieve()).status not in ("completed", "failed", "expired", "cancelled"):
            pass
        return batch
