"""The head of an answer goes out with what follows it, and never later than the loop's next turn."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock, call

from app.api.uvicorn_protocol import CoalescingTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


def joining() -> tuple[CoalescingTransport, Mock]:
    transport = Mock(spec=asyncio.Transport)
    return CoalescingTransport(transport, asyncio.get_running_loop()), transport


async def test_head_and_body_are_one_write() -> None:
    joined, transport = joining()
    joined.write(HEAD)
    joined.write(b"{}")
    await asyncio.sleep(0)
    assert transport.mock_calls == [call.write(HEAD + b"{}")]


async def test_a_head_whose_body_comes_later_goes_out_in_the_next_turn() -> None:
    joined, transport = joining()
    joined.write(HEAD)
    transport.write.assert_not_called()
    await asyncio.sleep(0)
    joined.write(b"data: 1\n\n")
    joined.write(b"data: 2\n\n")
    assert transport.mock_calls == [call.write(HEAD), call.write(b"data: 1\n\n"), call.write(b"data: 2\n\n")]


async def test_two_answers_in_one_turn_keep_their_order() -> None:
    joined, transport = joining()
    for _ in range(2):
        joined.write(HEAD)
        joined.write(b"{}")
    await asyncio.sleep(0)
    assert transport.mock_calls == [call.write(HEAD + b"{}")] * 2


async def test_an_empty_body_sends_the_head() -> None:
    joined, transport = joining()
    joined.write(HEAD)
    joined.write(b"")
    assert transport.mock_calls == [call.write(HEAD)]


async def test_closing_loses_no_head() -> None:
    joined, transport = joining()
    joined.write(HEAD)
    joined.close()
    await asyncio.sleep(0)
    assert transport.mock_calls == [call.write(HEAD), call.close()]


async def test_the_rest_is_the_transports() -> None:
    joined, transport = joining()
    transport.is_closing.return_value = True
    assert joined.is_closing()
    joined.pause_reading()
    transport.pause_reading.assert_called_once_with()
