"""pydantic-ai: whole runs of its agents, with its models for the Responses API and for chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.adapters import Adapter
from tests.clients.target import City, get_weather


class Responses(Adapter):
    kind: Any = OpenAIResponsesModel
    settings: ClassVar[dict[str, Any]] = {}
    thinking: ClassVar[dict[str, Any]] = {"openai_reasoning_effort": "medium", "openai_reasoning_summary": "auto"}

    @asynccontextmanager
    async def agent(self, profile: Any = None, **more: Any) -> AsyncIterator[Agent[None, Any]]:
        async with self.target.installation.async_client() as client:
            model = self.kind(self.model, provider=OpenAIProvider(openai_client=client), profile=profile)
            yield Agent(model, model_settings={**self.settings, **more.pop("settings", {})}, **more)

    async def run(self, asked: str, history: Any = (), **more: Any) -> Any:
        async with self.agent(**more) as agent:
            return await agent.run(asked, message_history=list(history))

    async def text(self, asked: str) -> str:
        result = await self.run(asked)
        assert (result.usage.output_tokens > 0, result.response.finish_reason) == (True, "stop")
        return result.output

    async def stream(self, asked: str) -> list[str]:
        async with self.agent() as agent, agent.run_stream(asked) as stream:
            return [delta async for delta in stream.stream_text(delta=True, debounce_by=None)]

    async def tool_loop(self, asked: str) -> str:
        result = await self.run(asked, tools=[get_weather])
        kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
        assert kinds == ["user-prompt", "tool-call", "tool-return", "text"]
        return result.output

    async def streamed_tool_loop(self, asked: str) -> str:
        async with self.agent(tools=[get_weather]) as agent, agent.run_stream(asked) as stream:
            return await stream.get_output()

    async def structured(self, asked: str) -> City:
        return (await self.run(asked, output_type=NativeOutput(City))).output

    async def history(self, *asked: str) -> list[str]:
        """The first answer goes back with its reasoning."""
        first = await self.run(asked[0], settings=self.thinking)
        return [first.output, (await self.run(asked[1], first.all_messages())).output]

    async def reasoning(self, asked: str) -> tuple[str, str]:
        result = await self.run(asked, settings=self.thinking)
        parts = [part for message in result.all_messages() for part in message.parts]
        return "".join(part.content for part in parts if isinstance(part, ThinkingPart)).strip(), result.output

    async def error(self) -> None:
        await self.run("Hi", settings={"temperature": 9})


class WebSocket(Responses):
    settings: ClassVar[dict[str, Any]] = {"openai_transport": "websocket"}


class Chat(Responses):
    kind = OpenAIChatModel
    thinking: ClassVar[dict[str, Any]] = {"openai_reasoning_effort": "medium"}
