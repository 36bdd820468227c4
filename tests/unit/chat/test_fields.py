"""Every field of the installed SDK's chat request is honoured, a hint that a page names, or refused by name."""

from __future__ import annotations

import re
import typing
from typing import Any

import pytest
from openai.types.chat import CompletionCreateParams

from app.chat.request import REFUSED, SAME, CreateChatCompletion
from app.chat.translation import chat_request
from app.protocol.errors import InvalidRequest
from tests.support.pages import table

PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}


def test_every_field_of_the_openai_package_is_known() -> None:
    fields = {name for variant in typing.get_args(CompletionCreateParams) for name in typing.get_type_hints(variant)}
    assert fields <= {*CreateChatCompletion.model_fields, *REFUSED}


def test_the_page_has_every_field() -> None:
    rows = [re.findall(r"`(\w+)`", row[0]) for row in table("Fields of a chat request")]
    ours = set(CreateChatCompletion.model_fields) - SAME - {"model"}
    assert sorted(name for names in rows for name in names) == sorted(ours | set(REFUSED))


def test_every_field_that_is_refused_says_what_to_do() -> None:
    for name in REFUSED:
        with pytest.raises(InvalidRequest) as caught:
            chat_request({**PLAIN, name: {"x": 1}})
        error = caught.value.error
        assert (error.param, error.code) == (name, "unsupported_parameter")
        assert re.match(rf"'{name}' is not supported yet( \(.*\))?; .+\.$", error.message)
        chat_request({**PLAIN, name: None})


def test_null_means_not_sent() -> None:
    plain = chat_request(PLAIN).stored("resp_1", {})
    for name in set(CreateChatCompletion.model_fields) - {"model", "messages"}:
        assert chat_request({**PLAIN, name: None}).stored("resp_1", {}) == plain, name
