"""llama-index: its LLM for the Responses API, and OpenAILike for chat completions."""

from __future__ import annotations

from typing import Any, ClassVar

from llama_index.core.base.llms.types import ThinkingBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from openai import DefaultHttpxClient

from tests.clients.adapters import Adapter
from tests.clients.target import City, Target, called, get_weather

WEATHER = FunctionTool.from_defaults(get_weather)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


class Responses(Adapter):
    kind: Any = OpenAIResponses
    options: ClassVar[dict[str, Any]] = {}
    thinking: ClassVar[dict[str, Any]] = {"reasoning": {"effort": "medium"}}
    """llama-index sends its `reasoning_options` to a list of OpenAI's models only, and shows content and summary."""
    call_id = "call_id"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.http = DefaultHttpxClient()

    def close(self) -> None:
        self.http.close()

    def llm(self, **more: Any) -> Any:
        there = {"model": self.model, "api_base": self.target.url, "api_key": "unused", "context_window": 32768}
        return self.kind(**there, max_retries=0, http_client=self.http, **self.options, **more)

    def text(self, asked: str) -> str:
        return self.llm().complete(asked).text

    def stream(self, asked: str) -> list[str]:
        return [chunk.delta or "" for chunk in self.llm().stream_complete(asked)]

    def tool_loop(self, asked: str) -> str:
        llm, said = self.llm(), [user(asked)]
        called = llm.chat_with_tools([WEATHER], chat_history=said)
        (made,) = llm.get_tool_calls_from_response(called)
        output = get_weather(**made.tool_kwargs)
        result = ChatMessage(role="tool", content=output, additional_kwargs={self.call_id: made.tool_id})
        return llm.chat_with_tools([WEATHER], chat_history=[*said, called.message, result]).message.content

    def structured(self, asked: str) -> Any:
        return self.llm().as_structured_llm(City).complete(asked).raw

    def history(self, *asked: str) -> list[Any]:
        first = self.llm().chat([user(asked[0])]).message
        return [first.content, self.llm().chat([user(asked[0]), first, user(asked[1])]).message.content]

    def reasoning(self, asked: str) -> tuple[str, str]:
        message = self.llm(additional_kwargs=self.thinking).chat([user(asked)]).message
        (thought,) = [block.content or "" for block in message.blocks if isinstance(block, ThinkingBlock)]
        return thought.strip(), message.content

    def error(self) -> None:
        self.llm(additional_kwargs={"temperature": 9}).complete("Hi")


class Chat(Responses):
    kind = OpenAILike
    options: ClassVar[dict[str, Any]] = {"is_chat_model": True, "is_function_calling_model": True}
    thinking: ClassVar[dict[str, Any]] = {"reasoning_effort": "medium"}
    call_id = "tool_call_id"

    def structured(self, asked: str) -> Any:
        """By a call that the model must make: `should_use_structured_outputs` needs an older openai."""
        return super().structured(called("City"))
