"""Anthropic's own client: Messages."""

from __future__ import annotations

from typing import Any

import anthropic

from tests.clients.adapters import Adapter
from tests.clients.target import WEATHER_TOOL, City, Target, get_weather

TOOL: Any = {
    "name": WEATHER_TOOL["name"],
    "description": WEATHER_TOOL["description"],
    "input_schema": WEATHER_TOOL["parameters"],
    "strict": True,
}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


class Messages(Adapter):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.client = anthropic.Anthropic(base_url=target.installation.url, api_key="unused", max_retries=0)

    def close(self) -> None:
        self.client.close()

    def _asked(self, *messages: Any, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": 2048, "messages": list(messages), **more}

    def _said(self, *messages: Any, **more: Any) -> Any:
        return self.client.messages.create(**self._asked(*messages, **more))

    def _streamed(self, *messages: Any, **more: Any) -> tuple[list[str], Any]:
        """The pieces of the text, and the message."""
        with self.client.messages.stream(**self._asked(*messages, **more)) as stream:
            pieces = list(stream.text_stream)
            return pieces, stream.get_final_message()

    def text(self, asked: str) -> str:
        message = self._said(user(asked))
        counted = self.client.messages.count_tokens(model=self.model, messages=[user(asked)])
        assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens
        assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
        return text_of(message)

    def stream(self, asked: str) -> list[str]:
        pieces, message = self._streamed(user(asked))
        assert message.usage.output_tokens > 0 and message.usage.input_tokens > 0
        assert (text_of(message), message.stop_reason) == ("".join(pieces), "end_turn")
        return pieces

    def _answered(self, asked: str, first: Any) -> str:
        assert first.stop_reason == "tool_use"
        (call,) = first.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)}
        said = {"role": "assistant", "content": first.content}
        return text_of(self._said(user(asked), said, user([result]), tools=[TOOL]))

    def tool_loop(self, asked: str) -> str:
        return self._answered(asked, self._said(user(asked), tools=[TOOL]))

    def streamed_tool_loop(self, asked: str) -> str:
        _, first = self._streamed(user(asked), tools=[TOOL])
        return self._answered(asked, first)

    def structured(self, asked: str) -> Any:
        form = {"type": "json_schema", "schema": {**City.model_json_schema(), "additionalProperties": False}}
        return City.model_validate_json(text_of(self._said(user(asked), output_config={"format": form})))

    def history(self, *asked: str) -> list[str]:
        first = self._said(user(asked[0]))
        second = self._said(user(asked[0]), {"role": "assistant", "content": first.content}, user(asked[1]))
        return [text_of(first), text_of(second)]

    def reasoning(self, asked: str) -> tuple[str, str]:
        """The thoughts come before the text, and go back with the message: with their text, or sealed."""
        thinking: Any = {"type": "adaptive"}
        _, first = self._streamed(user(asked), thinking=thinking)
        thought, said = first.content
        assert (thought.type, said.type) == ("thinking", "text") and thought.signature
        assert first.usage.output_tokens_details.thinking_tokens > 0
        for back in (thought.to_dict(), {**thought.to_dict(), "thinking": ""}):
            content = [back, said.to_dict()]
            again = self._said(user(asked), {"role": "assistant", "content": content}, user(asked), thinking=thinking)
            assert text_of(again) == said.text
        hidden = self._said(user(asked), thinking={**thinking, "display": "omitted"}).content[0]
        assert (hidden.type, hidden.thinking, bool(hidden.signature)) == ("thinking", "", True)
        return thought.thinking.strip(), said.text

    def error(self) -> None:
        self._said(user("Hi"), extra_body={"temperature": 9})


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")
