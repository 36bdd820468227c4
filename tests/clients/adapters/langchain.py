"""langchain-openai: with `use_responses_api=True`, and with chat completions, which are its default."""

from __future__ import annotations

from typing import Any, ClassVar

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import SecretStr

from tests.clients.adapters import Adapter
from tests.clients.target import THINKING, City, Target, get_weather

WEATHER = tool(get_weather)


class Responses(Adapter):
    options: ClassVar[dict[str, Any]] = {"use_responses_api": True}

    def __init__(self, target: Target) -> None:
        """Uses connections of its own: LangChain keeps some across event loops."""
        super().__init__(target)
        self.http, self.http_async = DefaultHttpxClient(), DefaultAsyncHttpxClient()

    def close(self) -> None:
        self.http.close()

    def chat(self, **more: Any) -> ChatOpenAI:
        connections = {"http_client": self.http, "http_async_client": self.http_async}
        there = {"model": self.model, "base_url": self.target.url, "api_key": SecretStr("unused"), "max_retries": 0}
        return ChatOpenAI(**{**there, **connections, **self.options, **more})

    def text(self, asked: str) -> str:
        message = self.chat().invoke(asked)
        used = message.usage_metadata
        assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"]
        return message.text

    def stream(self, asked: str) -> list[str]:
        chunks = list(self.chat(stream_usage=True).stream(asked))
        assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0
        return [chunk.text for chunk in chunks]

    def _answered(self, asked: str, called: Any) -> str:
        (call,) = called.tool_calls
        result = ToolMessage(WEATHER.invoke(call["args"]), tool_call_id=call["id"])
        return self.chat().bind_tools([WEATHER]).invoke([HumanMessage(asked), called, result]).text

    def tool_loop(self, asked: str) -> str:
        return self._answered(asked, self.chat().bind_tools([WEATHER]).invoke(asked))

    def streamed_tool_loop(self, asked: str) -> str:
        first, *rest = self.chat().bind_tools([WEATHER]).stream(asked)
        return self._answered(asked, sum(rest, first))

    def structured(self, asked: str) -> Any:
        return self.chat().with_structured_output(City, method="json_schema", strict=True).invoke(asked)

    def history(self, *asked: str) -> list[str]:
        """The first answer goes back with its reasoning."""
        thinking = {"reasoning": THINKING, "output_version": "responses/v1"} if self.options else {}
        first = self.chat(**thinking).invoke(asked[0])
        return [first.text, self.chat().invoke([HumanMessage(asked[0]), first, HumanMessage(asked[1])]).text]

    def reasoning(self, asked: str) -> tuple[str, str]:
        chunks = list(self.chat(reasoning=THINKING).stream(asked))
        return "".join(map(thought, chunks)), "".join(chunk.text for chunk in chunks)

    def error(self) -> None:
        self.chat(temperature=9).invoke("Hi")


def thought(message: Any) -> str:
    return "".join(str(block.get("reasoning", "")) for block in message.content_blocks if block["type"] == "reasoning")


class Chat(Responses):
    """As it comes. It reads no reasoning."""

    options: ClassVar[dict[str, Any]] = {}
