"""The demo model's folder is complete and small, and its template renders turns as the model was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config.models import load_models
from tests.models.demo import NEEDED, TOOLS, compact, completion, load_script

pytestmark = pytest.mark.long

CONFIG = Path(__file__).parents[3] / "config"
DEMO = CONFIG / "demo"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "script.json",
}
WEATHER_JSON = '{"name":"get_weather","arguments":{"city":"Paris"}}'
HELLO = {"role": "user", "content": "Hello!"}


def render(messages: list[dict[str, Any]], **values: Any) -> str:
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    template = environment.from_string((DEMO / "chat_template.jinja").read_text(encoding="utf-8"))
    return str(template.render(messages=messages, **values))


def test_the_folder_holds_exactly_the_files_of_a_small_model() -> None:
    assert {file.name for file in DEMO.iterdir()} == FILES
    assert sum(file.stat().st_size for file in DEMO.iterdir()) < 2_000_000


def test_models_toml_serves_the_demo_from_its_folder() -> None:
    model = load_models(CONFIG / "models.toml").choose(None)
    assert (model.name, Path(model.path)) == ("longhaul-demo", DEMO)
    assert model.chat_template_args == {"enable_thinking": False}
    assert model.default_sampling == {"temperature": 0.0}


def test_every_json_in_the_script_is_compact() -> None:
    texts = [message["content"] for each in load_script() for message in each.messages]
    objects = [text for text in texts if text.startswith("{")]
    assert len(objects) >= 10
    assert objects == [compact(json.loads(text)) for text in objects]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_scripted_turn_rendered_as_history_is_prompt_plus_completion(thinking: bool) -> None:
    for each in load_script():
        tools = [NEEDED[each.tools]] if each.tools else None
        for index in each.turns:
            earlier, message = each.messages[:index], each.messages[index]
            prompt = render(earlier, tools=tools, add_generation_prompt=True, enable_thinking=thinking)
            shown = message if thinking else {**message, "reasoning_content": None}
            before = prompt.removesuffix("<think>\n\n</think>\n\n")
            assert render([*earlier, shown], tools=tools) == before + completion(message, thinking) + "<|im_end|>\n"


def test_thinking_is_switched_off_by_an_empty_block() -> None:
    with_thinking = render([HELLO], add_generation_prompt=True)
    assert with_thinking.endswith("<|im_start|>assistant\n")
    without = render([HELLO], add_generation_prompt=True, enable_thinking=False)
    assert without == with_thinking + "<think>\n\n</think>\n\n"


def test_reasoning_is_kept_only_after_the_last_user_message() -> None:
    old = {"role": "assistant", "content": "a", "reasoning_content": "old thought"}
    new = {"role": "assistant", "content": "b", "reasoning_content": "new thought"}
    text = render([HELLO, old, HELLO, new])
    assert "old thought" not in text
    assert "<think>\nnew thought\n</think>\n\nb<|im_end|>" in text


@pytest.mark.parametrize("arguments", [{"city": "Paris"}, '{"city":"Paris"}'])
def test_tool_call_arguments_may_be_an_object_or_its_text(arguments: Any) -> None:
    function = {"name": "get_weather", "arguments": arguments}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    assert f"assistant\n<tool_call>\n{WEATHER_JSON}\n</tool_call><|im_end|>" in render([HELLO, message])


def test_content_may_be_a_list_of_parts() -> None:
    parts = [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo!"}]
    assert render([{"role": "user", "content": parts}]) == render([HELLO])


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_and_developer_messages_are_rendered_alike(role: str) -> None:
    assert render([{"role": role, "content": "Be kind."}, HELLO]).startswith("<|im_start|>system\nBe kind.<|im_end|>\n")


def test_a_system_prompt_and_tools_share_one_block() -> None:
    text = render([{"role": "system", "content": "Be kind."}, HELLO], tools=list(TOOLS))
    assert text.count("<|im_start|>system") == 1
    assert text.startswith("<|im_start|>system\nBe kind.\n\nTools you may call:\n<tools>\n")
    assert all(compact(tool) in text for tool in TOOLS)


def test_tool_results_in_a_row_share_one_user_block() -> None:
    text = render([HELLO, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}])
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
    )
