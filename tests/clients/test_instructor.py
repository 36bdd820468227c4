"""instructor: pydantic models from the arguments of a call that the model must make, in both APIs."""

from __future__ import annotations

from typing import Any

import instructor
import pytest
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, Field, field_validator

from tests.clients.target import PARIS, City, Target

pytestmark = pytest.mark.long

MODE = instructor.Mode.RESPONSES_TOOLS


class get_weather(BaseModel):  # the name of the call
    """Current weather of a city."""

    city: str = Field(max_length=20)


def asked(target: Target, name: str) -> str:
    """Returns a question that is answered by a call of `name` for Paris."""
    return target.script.weather.replace("get_weather", name)


def test_a_model_is_filled(client: OpenAI, target: Target) -> None:
    extracted = instructor.from_openai(client, mode=MODE).responses.create(
        model=target.model, input=asked(target, "get_weather"), response_model=get_weather
    )
    assert extracted.city == "Paris"


def test_a_model_is_filled_as_it_streams(client: OpenAI, target: Target) -> None:
    seen: list[Any] = list(
        instructor.from_openai(client, mode=MODE).responses.create_partial(
            model=target.model, input=asked(target, "Partialget_weather"), response_model=get_weather
        )
    )
    assert seen[-1].city == "Paris"
    assert len({each.city for each in seen}) > 1


def test_a_model_that_does_not_hold_is_asked_for_again(client: OpenAI, target: Target) -> None:
    class get_weather(BaseModel):
        """Current weather of a city."""

        city: str = Field(max_length=20)

        @field_validator("city")
        @classmethod
        def _refused(cls, city: str) -> str:
            raise ValueError(f"there is no {city}")

    asking = instructor.from_openai(client, mode=MODE)
    requests: list[dict[str, Any]] = []
    asking.on("completion:kwargs", lambda **sent: requests.append(sent))
    with pytest.raises(InstructorRetryException, match="there is no Paris"):
        asking.responses.create(
            model=target.model, input=asked(target, "get_weather"), response_model=get_weather, max_retries=2
        )
    assert len(requests) > 1


def test_a_model_is_filled_by_chat_completions(client: OpenAI, target: Target) -> None:
    extracted = instructor.from_openai(client).chat.completions.create(
        model=target.model, messages=_chat(asked(target, "get_weather")), response_model=get_weather
    )
    assert extracted.city == "Paris"


def test_a_model_is_filled_as_chat_completions_stream(client: OpenAI, target: Target) -> None:
    seen: list[Any] = list(
        instructor.from_openai(client).chat.completions.create_partial(
            model=target.model, messages=_chat(asked(target, "Partialget_weather")), response_model=get_weather
        )
    )
    assert seen[-1].city == "Paris"


def test_a_schema_is_the_response_format_of_chat_completions(client: OpenAI, target: Target) -> None:
    extracting = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    extracted = extracting.chat.completions.create(
        model=target.model, messages=_chat(target.script.paris), response_model=City
    )
    assert extracted.model_dump() == PARIS.model_dump()


def test_chat_completions_are_asked_again_with_the_error(client: OpenAI, target: Target) -> None:
    """The second request has the first answer as instructor writes it back, and a tool's result with the error."""

    class get_weather(BaseModel):
        """Current weather of a city."""

        city: str

        @field_validator("city")
        @classmethod
        def _refused(cls, city: str) -> str:
            raise ValueError(f"there is no {city}")

    asking = instructor.from_openai(client)
    requests: list[dict[str, Any]] = []
    asking.on("completion:kwargs", lambda **sent: requests.append(sent))
    with pytest.raises(InstructorRetryException):
        asking.chat.completions.create(
            model=target.model,
            messages=_chat(asked(target, "get_weather")),
            response_model=get_weather,
            max_retries=2,
        )
    assert [message["role"] for message in requests[-1]["messages"]][:3] == ["user", "assistant", "tool"]


def _chat(text: str) -> Any:
    return [{"role": "user", "content": text}]
