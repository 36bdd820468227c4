"""Celery's JSON as orjson has it: what kombu would read of it, and the other way round."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from kombu.utils import json

from workers.celery_host.json_codec import dumps, loads

PLAIN: list[Any] = [
    None,
    [[], {"response_id": "resp_1", "model": "demo"}, {"callbacks": None, "errbacks": None, "chain": None}],
    {"type": "task-received", "uuid": "resp_1", "clock": 12, "timestamp": 1732.25, "args": "()"},
    {"text": 'é 👋 "quoted" \\ \0', "nested": [[1, -2, 2**53, True, 1e-9]]},
]
TYPED: list[Any] = [
    {"at": datetime(2026, 11, 21, 12, 30, tzinfo=UTC)},
    {"amount": Decimal("1.5")},
    {"data": b"\xff\0"},
    {"large": 2**80},
    {1: "a number as a key", None: 2},
]


@pytest.mark.parametrize("value", [*PLAIN, *TYPED])
def test_kombu_reads_what_is_written_as_it_reads_its_own(value: Any) -> None:
    assert json.loads(dumps(value)) == json.loads(json.dumps(value))


@pytest.mark.parametrize("value", [*PLAIN, *TYPED])
def test_what_kombu_writes_is_read_as_kombu_reads_it(value: Any) -> None:
    written = json.dumps(value)
    for data in (written, written.encode(), bytearray(written.encode()), memoryview(written.encode())):
        assert loads(data) == json.loads(written)


@pytest.mark.parametrize("written", ['{"a": "\\ud83d"}', "[Infinity]", '"\ud83d"'])
def test_what_orjson_refuses_and_kombu_takes_is_taken(written: str) -> None:
    assert loads(written) == json.loads(written)


@pytest.mark.parametrize("written", ["", "{", "[1,]", "nothing"])
def test_what_is_no_json_is_an_error_that_kombu_knows(written: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(written)
