"""LiteLLM's SDK: its Responses API, its chat completions, and chat completions over its Responses API."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import litellm
from litellm.llms.custom_httpx.http_handler import HTTPHandler
from openai import OpenAI

from tests.clients.adapters import Adapter
from tests.clients.adapters.openai import user
from tests.clients.target import CHAT_WEATHER_TOOL, THINKING, WEATHER_TOOL, City, Target, get_weather


def close_connections() -> None:
    """Closes what LiteLLM keeps open for its next requests: its own cleanup closes asynchronous clients."""
    asyncio.run(litellm.close_litellm_async_clients())
    for each in [*litellm.in_memory_llm_clients_cache.cache_dict.values(), litellm.module_level_client]:
        if isinstance(each, HTTPHandler | OpenAI):
            each.close()
    litellm.in_memory_llm_clients_cache.flush_cache()
    litellm.module_level_client = HTTPHandler()


class Responses(Adapter):
    prefix = "openai/"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.at = {"api_base": target.url, "api_key": "unused"}
        self.to = {**self.at, "model": f"{self.prefix}{self.model}", "max_retries": 0}

    def close(self) -> None:
        close_connections()

    def said(self, asked: Any, **more: Any) -> Any:
        return litellm.responses(input=asked, **self.to, **more)

    def text(self, asked: str) -> str:
        response = self.said(asked)
        assert (response.status, response.usage.output_tokens > 0) == ("completed", True)
        return response.output_text

    def stream(self, asked: str) -> list[str]:
        events = list(self.said(asked, stream=True))
        assert events[-1].type == "response.completed"
        return [event.delta for event in events if event.type == "response.output_text.delta"]

    def tool_loop(self, asked: str) -> str:
        first = self.said(asked, tools=[WEATHER_TOOL])
        (call,) = first.output
        output = get_weather(**json.loads(call.arguments))
        result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
        return self.said([result], tools=[WEATHER_TOOL], previous_response_id=first.id).output_text

    def structured(self, asked: str) -> City:
        return City.model_validate_json(self.said(asked, text_format=City).output_text)

    def history(self, *asked: str) -> list[str]:
        first = self.said(asked[0])
        return [first.output_text, self.said(asked[1], previous_response_id=first.id).output_text]

    def reasoning(self, asked: str) -> tuple[str, str]:
        response = self.said(asked, reasoning=THINKING)
        return "".join(part.text for part in response.output[0].summary), response.output_text

    def error(self) -> None:
        self.said("Hi", temperature=9)


class Chat(Responses):
    thinking: ClassVar[dict[str, Any]] = {"reasoning_effort": "medium", "allowed_openai_params": ["reasoning_effort"]}
    """As aider asks for it, too. LiteLLM sends `reasoning_effort` to names that it knows, and if it is allowed to."""

    def said(self, asked: Any, **more: Any) -> Any:
        messages = [user(asked)] if isinstance(asked, str) else asked
        return litellm.completion(messages=messages, **self.to, **more)

    def text(self, asked: str) -> str:
        answer = self.said(asked, max_tokens=100)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        return answer.choices[0].message.content

    def stream(self, asked: str) -> list[str]:
        return [chunk.choices[0].delta.content or "" for chunk in self.said(asked, stream=True)]

    async def tool_loop(self, asked: str) -> str:
        said: list[Any] = [user(asked)]
        (first,) = (await litellm.acompletion(messages=said, tools=[CHAT_WEATHER_TOOL], **self.to)).choices
        (call,) = first.message.tool_calls
        output = get_weather(**json.loads(call.function.arguments))
        said += [first.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": output}]
        second = await litellm.acompletion(messages=said, tools=[CHAT_WEATHER_TOOL], **self.to)
        await litellm.close_litellm_async_clients()
        assert first.finish_reason == "tool_calls"
        return second.choices[0].message.content

    def structured(self, asked: str) -> City:
        return City.model_validate_json(self.said(asked, response_format=City).choices[0].message.content)

    def history(self, *asked: str) -> list[str]:
        first = self.said(asked[0]).choices[0].message
        second = self.said([user(asked[0]), first.model_dump(), user(asked[1])]).choices[0].message
        return [first.content, second.content]

    def reasoning(self, asked: str) -> tuple[str, str]:
        message = self.said(asked, **self.thinking).choices[0].message
        deltas = [chunk.choices[0].delta for chunk in self.said(asked, stream=True, **self.thinking)]
        streamed = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert streamed.strip() == message.reasoning_content.strip()
        return streamed.strip(), message.content


class ChatOverResponses(Chat):
    """`reasoning_effort="medium"` would ask for no summary."""

    prefix = "openai/responses/"
    thinking: ClassVar[dict[str, Any]] = {"reasoning_effort": THINKING}
