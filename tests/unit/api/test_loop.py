"""How many connections a turn of the loop accepts, and what libuv does of its own."""

import asyncio
import socket

import pytest
import uvloop

from app.api.connection.loop import ACCEPTED_A_TURN, Loop


class Counting(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Counting.made += 1
        transport.close()


async def turns_to_accept(count: int) -> int:
    """The turns of the running loop until it has accepted `count` connections that came at once."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Counting, "127.0.0.1", 0, backlog=count)
    address = server.sockets[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(count)]
    Counting.made = turns = 0
    while Counting.made < count:
        await asyncio.sleep(0)
        turns += 1
    for each in clients:
        each.close()
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    return turns


def test_a_burst_of_connections_is_accepted_in_a_few_turns() -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(turns_to_accept(2 * ACCEPTED_A_TURN)) < 10


def test_uvloop_alone_accepts_one_connection_a_turn() -> None:
    """If this fails, `Loop` has no reason any more: docs/internals/decisions/bounds.md."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turns_to_accept(2 * ACCEPTED_A_TURN)) >= 2 * ACCEPTED_A_TURN
