"""Chat templates, rendered as transformers does."""

from __future__ import annotations

import pytest

from config.chat_template import TOOL, ChatTemplate, TemplateError

HI = [{"role": "user", "content": "Hi"}]


def prompt(text: str, **switches: object) -> str:
    return ChatTemplate({"default": text}).render(HI, **switches)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% if loop.last %}{% break %}{% endif %}{% endfor %}", "Hi"),
        ("{%- generation %}{{ messages[0].content }}{%- endgeneration -%} !", "Hi!"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{% if add_generation_prompt %}<think>{% endif %}{{ bos_token }}{{ tools is none }}", "<think>True"),
        ("{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}", ""),
    ],
)
def test_a_template_is_rendered_as_transformers_does(text: str, expected: str) -> None:
    assert prompt(text) == expected


def test_switches_reach_the_template() -> None:
    assert prompt("{{ enable_thinking }}", enable_thinking=False) == "False"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('No.') }}",
        "{% if %}",
        "{{ none + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_one_error_in_one_line(text: str) -> None:
    with pytest.raises(TemplateError) as raised:
        prompt(text)
    assert len(str(raised.value).splitlines()) == 1


def test_the_template_for_tools_is_taken_with_tools_alone() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}"})
    assert (template.render(HI), template.render(HI, [TOOL])) == ("plain", "1")


@pytest.mark.parametrize("arguments", ["{{ call.function.arguments | tojson }}", "{{ '' + call.function.arguments }}"])
@pytest.mark.parametrize("condition", ["not m.content", "m.content is none", "m.content is not defined"])
def test_a_call_is_probed_with_the_arguments_and_the_content_that_the_template_takes(
    arguments: str, condition: str
) -> None:
    calls = f"{{% for call in m.tool_calls %}}<call>{{{{ call.function.name }}}}{arguments}</call>{{% endfor %}}"
    shown = f"{{% if m.tool_calls and {condition} %}}{calls}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    text = f"{{% for m in messages %}}{shown}{{% endfor %}}"
    assert ChatTemplate({"default": text}).call == '<call>longhaul_probe{"longhaul_key": "longhaul_value"}</call>'
