"""The demo model's folder is complete and small, and its script has compact JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.models import load_models
from tests.models.demo.conversation import Turn, compact, completion, turns_of
from tests.models.demo.script import build_script
from tests.models.demo.tools import NEEDED, TOOLS

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

Script = list[dict[str, Any]]


@pytest.fixture(scope="module")
def script() -> Script:
    loaded: Script = json.loads((DEMO / "script.json").read_text(encoding="utf-8"))
    return loaded


def texts(script: Script) -> Iterator[str]:
    for conversation in script:
        for message in conversation["messages"]:
            yield message["content"]


def render(messages: list[dict[str, Any]], **values: Any) -> str:
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    template = environment.from_string((DEMO / "chat_template.jinja").read_text(encoding="utf-8"))
    return str(template.render(messages=messages, **values))


def prompt(turn: Turn, thinking: bool) -> str:
    tools = turn.conversation.tools
    return render(
        list(turn.conversation.messages[: turn.index]),
        tools=[NEEDED[tools]] if tools else None,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )


def test_the_folder_holds_exactly_the_files_of_a_model() -> None:
    assert {file.name for file in DEMO.iterdir()} == FILES


def test_the_folder_is_small_enough_for_a_repository() -> None:
    assert sum(file.stat().st_size for file in DEMO.iterdir()) < 2_000_000


def test_the_weights_are_bfloat16() -> None:
    assert json.loads((DEMO / "config.json").read_text())["dtype"] == "bfloat16"


def test_models_toml_serves_the_demo_from_its_folder() -> None:
    model = load_models(CONFIG / "models.toml").choose(None)
    assert (model.name, Path(model.path)) == ("longhaul-demo", DEMO)
    assert model.chat_template_args == {"enable_thinking": False}
    assert model.default_sampling == {"temperature": 0.0}


def test_script_json_is_what_the_training_script_says(script: Script) -> None:
    assert script == [conversation.as_json() for conversation in build_script()]


def test_the_template_of_the_folder_is_the_one_in_the_source() -> None:
    source = (CONFIG.parent / "tests" / "models" / "demo" / "template.jinja").read_text(encoding="utf-8")
    assert (DEMO / "chat_template.jinja").read_text(encoding="utf-8").strip() == source.strip()


def test_conversation_names_are_unique(script: Script) -> None:
    names = [conversation["name"] for conversation in script]
    assert len(set(names)) == len(names)


def test_every_json_in_the_script_is_compact(script: Script) -> None:
    objects = [text for text in texts(script) if text.startswith("{")]
    assert len(objects) >= 10
    assert objects == [compact(json.loads(text)) for text in objects]


def test_tool_calls_are_compact() -> None:
    turn = next(turn for turn in turns_of(build_script()) if turn.conversation.name == "weather_Paris")
    assert completion(turn.message, thinking=False) == f"<tool_call>\n{WEATHER_JSON}\n</tool_call>"


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        ("Hello!", "Hello! How can I help you today?"),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("Count from 1 to 60.", ", ".join(str(number) for number in range(1, 61)) + "."),
        (
            "Give me a JSON object that describes Paris.",
            '{"name":"Paris","country":"France","population":2102650,"capital":true}',
        ),
    ],
)
def test_the_script_has_the_answers_that_other_tests_rely_on(script: Script, question: str, reply: str) -> None:
    pairs = {c["messages"][0]["content"]: c["messages"][1]["content"] for c in script}
    assert pairs[question] == reply


def test_the_story_is_long(script: Script) -> None:
    story = next(conversation for conversation in script if conversation["name"] == "story")
    assert 200 <= len(story["messages"][1]["content"].split()) <= 300


@pytest.mark.parametrize("thinking", [False, True])
def test_a_scripted_turn_rendered_as_history_is_prompt_plus_completion(thinking: bool) -> None:
    for turn in turns_of(build_script()):
        before = prompt(turn, thinking).removesuffix("<think>\n\n</think>\n\n")
        message = turn.message if thinking else {**turn.message, "reasoning_content": None}
        tools = [NEEDED[turn.conversation.tools]] if turn.conversation.tools else None
        rendered = render([*turn.conversation.messages[: turn.index], message], tools=tools)
        assert rendered == before + completion(turn.message, thinking) + "<|im_end|>\n"


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
