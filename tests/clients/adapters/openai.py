"""The official client: responses and chat completions."""

from __future__ import annotations

import json
from typing import Any

from tests.clients.adapters import Adapter
from tests.clients.target import CHAT_WEATHER_TOOL, WEATHER_TOOL, City, Target, get_weather


class Responses(Adapter):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.client = target.installation.client()

    def close(self) -> None:
        self.client.close()

    def _said(self, asked: Any, **more: Any) -> Any:
        return self.client.responses.create(model=self.model, input=asked, **more)

    def text(self, asked: str) -> str:
        response = self._said(asked)
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
        assert self.client.responses.retrieve(response.id).to_dict() == response.to_dict()
        return response.output_text

    def stream(self, asked: str, **more: Any) -> list[str]:
        with self.client.responses.stream(model=self.model, input=asked, **more) as stream:
            pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
            assert stream.get_final_response().output_text == "".join(pieces)
        return pieces

    def _answered(self, first: Any) -> str:
        (call,) = first.output
        output = get_weather(**json.loads(call.arguments))
        result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
        return self._said([result], tools=[WEATHER_TOOL], previous_response_id=first.id).output_text

    def tool_loop(self, asked: str) -> str:
        return self._answered(self._said(asked, tools=[WEATHER_TOOL]))

    def streamed_tool_loop(self, asked: str) -> str:
        with self.client.responses.stream(model=self.model, input=asked, tools=[WEATHER_TOOL]) as stream:
            arguments = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            first = stream.get_final_response()
        assert "".join(arguments) == first.output[0].arguments
        return self._answered(first)

    def structured(self, asked: str) -> Any:
        return self.client.responses.parse(model=self.model, input=asked, text_format=City).output_parsed

    def history(self, *asked: str) -> list[str]:
        first = self._said(asked[0])
        second = self._said(asked[1], previous_response_id=first.id)
        assert second.usage.input_tokens > first.usage.total_tokens
        return [first.output_text, second.output_text]

    def reasoning(self, asked: str) -> tuple[str, str]:
        with self.client.responses.stream(model=self.model, input=asked, reasoning={"effort": "medium"}) as stream:
            thought = [event.delta for event in stream if event.type == "response.reasoning_text.delta"]
            response = stream.get_final_response()
        assert [item.type for item in response.output] == ["reasoning", "message"]
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        return "".join(thought).strip(), response.output_text

    def error(self) -> None:
        self._said("Hi", temperature=9)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


class Chat(Responses):
    def _said(self, asked: Any, **more: Any) -> Any:
        return self.client.chat.completions.create(model=self.model, messages=asked, **more)

    def text(self, asked: str) -> str:
        completion = self._said([user(asked)])
        (choice,) = completion.choices
        assert (choice.finish_reason, choice.message.role, choice.message.tool_calls) == ("stop", "assistant", None)
        assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
        return choice.message.content

    def stream(self, asked: str, **more: Any) -> list[str]:
        *chunks, last = self._said([user(asked)], stream=True, stream_options={"include_usage": True})
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
        assert {(chunk.id, chunk.usage) for chunk in chunks} == {(last.id, None)}
        assert (last.choices, last.usage.completion_tokens > 0) == ([], True)
        return [chunk.choices[0].delta.content or "" for chunk in chunks]

    def _answered(self, messages: Any) -> str:
        (call,) = messages[-1].tool_calls
        result = {
            "role": "tool",
            "tool_call_id": call.id,
            "content": get_weather(**json.loads(call.function.arguments)),
        }
        return self._said([*messages, result], tools=[CHAT_WEATHER_TOOL]).choices[0].message.content

    def tool_loop(self, asked: str) -> str:
        (first,) = self._said([user(asked)], tools=[CHAT_WEATHER_TOOL]).choices
        assert (first.finish_reason, first.message.content) == ("tool_calls", None)
        return self._answered([user(asked), first.message])

    def streamed_tool_loop(self, asked: str) -> str:
        tools: Any = [CHAT_WEATHER_TOOL]
        with self.client.chat.completions.stream(model=self.model, messages=[user(asked)], tools=tools) as stream:
            stream.until_done()
            first = stream.get_final_completion().choices[0]
        assert first.finish_reason == "tool_calls"
        return self._answered([user(asked), first.message])

    def structured(self, asked: str) -> Any:
        asked_for: Any = {"model": self.model, "messages": [user(asked)], "response_format": City}
        return self.client.chat.completions.parse(**asked_for).choices[0].message.parsed

    def history(self, *asked: str) -> list[str]:
        first = self._said([user(asked[0])]).choices[0].message
        second = self._said([user(asked[0]), first, user(asked[1])]).choices[0].message
        return [first.content, second.content]

    def reasoning(self, asked: str) -> tuple[str, str]:
        """The reasoning comes before the text as it streams, and goes back with the message."""
        first = self._said([user(asked)], reasoning_effort="medium").choices[0].message
        again = [user(asked), first, user(asked)]
        chunks = self._said(again, reasoning_effort="medium", stream=True)
        deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in chunks]
        kinds = [kind for delta in deltas for kind in ("reasoning_content", "content") if delta.get(kind)]
        assert kinds == sorted(kinds, reverse=True)
        assert "".join(delta.get("content", "") for delta in deltas) == first.content
        return first.model_dump()["reasoning_content"].strip(), first.content

    def error(self) -> None:
        self._said([user("Hi")], temperature=9)
