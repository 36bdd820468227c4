"""instructor: pydantic models from the arguments of a call that the model must make."""

from __future__ import annotations

from typing import Any

import instructor
import pytest
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, Field, field_validator

from tests.clients.target import Target

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
