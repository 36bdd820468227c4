"""HTTP to one vLLM server. What it answers, or does not, becomes the engine contract's errors here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from time import monotonic
from typing import Any

import aiohttp
import orjson

from workers.engine.base import EngineAway, InvalidSampling, PromptTooLong, RequestAborted
from workers.engine.server.frames import BadFrame, ErrorFrame, Frames, Piece

ANSWER_SECONDS = 5.0
"""How long a connection, and the answer to a question about the server, may take: then it hangs, and is away."""
FULL_SECONDS = 1.0
"""How long a server that is full (429, 503) is left alone, if it does not say."""
MIN_FULL_SECONDS = 0.25
MAX_FULL_SECONDS = 30.0
KEEP_SECONDS = 3.0
"""How long an idle connection is kept: vLLM closes them after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""
_GENERATE = "/inference/v1/generate"
_MAX_MESSAGE = 500
_READ_BYTES = 2**18


class Unfit(EngineAway):
    """The server is there, but cannot serve this model; somebody has to change it, or the models file."""


class ServerFull(EngineAway):
    """The server takes nothing for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__("it is full")
        self.seconds = seconds


class Client:
    """Keeps connections alive; one request on each (HTTP/1.1). To be made on the event loop.

    A server that says that it is full gets nothing until it takes requests again: all raise ServerFull meanwhile.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS),
            read_bufsize=_READ_BYTES,
        )
        self._waiting: set[asyncio.Timeout] = set()
        """One for each request without an answer yet."""
        self._open: set[aiohttp.ClientResponse] = set()
        self._full_until = 0.0

    @property
    def full_seconds(self) -> float:
        """How long the server takes nothing from now on."""
        return max(self._full_until - monotonic(), 0.0)

    async def close(self) -> None:
        self.cut()
        await self._session.close()

    def cut(self) -> None:
        """Ends all requests, answered or not: their readers get EngineAway."""
        while self._waiting:
            self._waiting.pop().reschedule(0.0)
        for response in list(self._open):
            response.close()

    async def get(self, path: str) -> bytes:
        """Raises EngineAway, or Unfit if the server has no such page."""
        self._check_full()
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        try:
            async with self._session.get(self.url + path, timeout=timeout) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineAway(_reason(error)) from None
        if response.status != 200:
            raise self._refusal(response, body)
        return body

    async def generate(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> AsyncGenerator[Piece]:
        """The pieces of one answer. What a slow reader left comes as one piece. Closing it ends the request there.

        Raises EngineAway, InvalidSampling, PromptTooLong, RequestAborted or ErrorFrame.
        """
        self._check_full()
        frames, response, last = Frames(), None, None
        try:
            response = await self._answer(
                orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS), {"Content-Type": "application/json", **headers}
            )
            self._open.add(response)
            async for data in response.content.iter_any():
                for piece in frames.feed(data):
                    if piece.finish_reason is None:
                        yield piece
                    last = piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if last is None or last.finish_reason is None:
                raise EngineAway(_reason(error), counts=response is not None) from None
        except BadFrame as error:
            raise RequestAborted(str(error), counts=True) from None
        finally:
            if response is not None:
                self._open.discard(response)
                _leave(response)
        if last is None or last.finish_reason is None:
            raise EngineAway("it ended a stream in the middle", counts=True)
        yield last  # the connection is free by now

    async def _answer(self, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Posts a request; returns the answer once its headers are there. A refusal is read, and raised."""
        async with asyncio.timeout(None) as waiting:
            self._waiting.add(waiting)
            try:
                response = await self._post(body, headers)
                if response.status != 200:
                    async with response:
                        raise self._refusal(response, await response.read())
                return response
            finally:
                self._waiting.discard(waiting)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Once more, if the server closed the connection meanwhile: a kept one may just have become too old."""
        try:
            return await self._session.post(self.url + _GENERATE, data=body, headers=headers)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            return await self._session.post(self.url + _GENERATE, data=body, headers=headers)

    def _check_full(self) -> None:
        if seconds := self.full_seconds:
            raise ServerFull(seconds)

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes) -> Exception:
        error = _refusal(response.status, response.headers, body)
        if isinstance(error, ServerFull):
            self._full_until = max(self._full_until, monotonic() + error.seconds)
        return error


def _leave(response: aiohttp.ClientResponse) -> None:
    """Keeps the connection if its answer was read to the end; else closes it, which aborts the request there."""
    if response.content.at_eof() or response.content.is_eof():
        response.release()
    else:
        response.close()


def prompt_error(error: ErrorFrame, tokens: int, limit: int) -> Exception:
    """For a stream's error that is the caller's fault. A prompt that is too long is one."""
    message = short(str(error))
    if "maximum model length" in message or "context length" in message or "max_model_len" in message:
        return PromptTooLong(tokens, limit)
    return InvalidSampling(message)


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> Exception:
    error = _error_of(body)
    message = short(str(error.get("message") or f"it answers with status {status}"))
    if status in (429, 503):
        return ServerFull(_seconds(headers.get("Retry-After")))
    if status in (401, 403):
        return Unfit("it refuses the api_key")
    if status == 404:
        is_known = bool(error.get("message"))
        return Unfit(message if is_known else "it has no token route; start it with --enable-scale-out")
    if status in (400, 413, 422):
        return InvalidSampling(f"{error['param']}: {message}" if error.get("param") else message)
    if status == 500:
        return RequestAborted(message, counts=True)
    return EngineAway(message)


def _error_of(body: bytes) -> Mapping[str, Any]:
    try:
        found = orjson.loads(body)
        return found["error"] if isinstance(found["error"], dict) else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _seconds(retry_after: str | None) -> float:
    try:
        return min(MAX_FULL_SECONDS, max(MIN_FULL_SECONDS, float(retry_after or "")))
    except ValueError:  # none, or a date
        return FULL_SECONDS


def _reason(error: BaseException) -> str:
    return "it does not answer" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {short(str(error))}"


def short(message: str) -> str:
    """The message of a server, on one line."""
    return " ".join(message.split())[:_MAX_MESSAGE]
