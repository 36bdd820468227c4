"""What a model cannot be shown is refused by the field that asks for it, before anything is rendered."""

from __future__ import annotations

from typing import Any, cast

import pytest

from config.chat_template import ChatTemplate
from config.shaping.conversations import Conversation
from config.shaping.proof import AS_IT_IS, Proof, proven
from config.shaping.rendering import renderer
from tests.support.requests import stored_request
from workers.engine.base import EngineError, InvalidPrompt
from workers.formats.chat.turn import check_order

TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
EACH = "{% for m in messages %}"
SHOW = "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}"


def proof_of(template: str) -> Proof:
    return proven(renderer(ChatTemplate({"default": template})))


USERS = proof_of(TOOLS + EACH + "{% if m.role == 'user' %}" + SHOW + "{% endif %}{% endfor %}")
NO_TOOLS = proof_of(EACH + SHOW + "{% endfor %}")


def check(letters: str, proof: Proof, *, tools: bool = False, **request: Any) -> None:
    check_order(cast(Any, Conversation(letters).messages), stored_request(**request), proof, has_tools=tools)


@pytest.mark.parametrize(
    ("letters", "proof", "tools", "message"),
    [
        ("UAU", USERS, False, "input: this model cannot be shown .*: its chat template leaves out an answer"),
        ("UUA", USERS, False, "input: .* leaves out an answer"),
        ("U", NO_TOOLS, True, "tools: this model cannot be shown tools: its chat template shows no tools"),
    ],
)
def test_an_order_that_is_refused_names_the_field_and_the_reason(
    letters: str, proof: Proof, tools: bool, message: str
) -> None:
    with pytest.raises(InvalidPrompt, match=f"^{message}"):
        check(letters, proof, tools=tools)


def test_what_is_proven_passes_and_a_model_that_is_shown_nothing_is_the_operators_fault() -> None:
    check("UUSU", USERS)
    check("UCUA", AS_IT_IS, tools=True)
    with pytest.raises(EngineError, match="cannot be shown any message: why") as raised:
        check("U", Proof(broken="why"))
    assert not isinstance(raised.value, InvalidPrompt)
