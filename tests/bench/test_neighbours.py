"""What the bench of neighbours counts, against a server that answers by a script."""

from __future__ import annotations

import json

import httpx
from aiohttp import web

from app.local.ports import free_port
from tests.bench.neighbours import HEADS, Bench, Scene, Sizes, table


async def test_times_are_of_first_tokens_and_gaps_and_what_fails_is_counted() -> None:
    asked = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        body = await request.json()
        if not body["stream"]:
            return web.json_response({}, status=200 if asked % 2 else 503)
        stream = web.StreamResponse()
        await stream.prepare(request)
        for text in ("", "a", "b", "c"):
            await stream.write(f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        return stream

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner, port = web.AppRunner(app), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with httpx.AsyncClient() as http:
            url = f"http://127.0.0.1:{port}"
            scene = await Bench(http, "m", Sizes(streams=1, seconds=0.05)).scene("alone", url)
            lines = Scene("lines")
            await Bench(http, "m", Sizes(lines=4)).straight(url)(lines)
    finally:
        await runner.cleanup()
    assert scene.ok == len(scene.first) >= 1 and len(scene.gaps) == 2 * scene.ok and scene.failed == 0
    assert (lines.lines, lines.lost) == (2, 2)
    rows = table([scene, lines]).splitlines()
    assert [row.count("|") for row in rows] == [len(HEADS) + 1] * 4
