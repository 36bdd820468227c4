"""The table of families: for each a config and a chat template of its kind, with the marks that decide.

The templates are ours, and as short as can be. The marks in them are those of the real ones.
"""

from __future__ import annotations

import pytest

from config.families import FAMILIES, UNKNOWN, ModelFiles, reading_of

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
CALLS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
END_CALLS = "{% endfor %}<|im_end|>{% endfor %}"
JSON = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
HERMES = (
    "{% if tools %}<tools>{{ tools }}</tools> Write <tool_call>{'name': ..., 'arguments': ...}</tool_call>{% endif %}"
)
SHOWN_CALL = f"{CALLS}<tool_call>\n{JSON}\n</tool_call>{END_CALLS}"
IN_A_LIST = f"{CALLS}<tool_calls>[{JSON}]</tool_calls>{END_CALLS}"
MCP = "<tool_name>{{ call.function.name }}</tool_name>{{ call.function.arguments }}"
AS_MCP = f"{CALLS}<use_mcp_tool>{MCP}</use_mcp_tool>{END_CALLS}"
PAIR = "{{ call.function.arguments | first }}</arg_key>{{ call.function.arguments.values() | first }}"
PAIRS = f"{CALLS}<tool_call>{{{{ call.function.name }}}}\n<arg_key>{PAIR}{END_CALLS}"
CODER = (
    "{% if tools %}<tools>{{ tools }}</tools><tool_call><function=f><parameter=p>v</parameter></function>{% endif %}"
)
SWITCHED = "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"
THINKING = "{% if thinking %}<think>{% endif %}"
CUT_THOUGHTS = "{{ messages[0].content.split('</think>')[-1] }}"
THINKS = "<|im_start|>assistant\n<think>\n"
DEEPSEEK = "{% for m in messages %}<\uff5cUser\uff5c>{{ m.content }}<\uff5cAssistant\uff5c>{% endfor %}"
DEEPSEEK_CALL = f"{CALLS}<\uff5cAssistant\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<sep>{JSON}{END_CALLS}"
LISTED = "{% if tools %}{{ tools | tojson }}{% endif %}"
LLAMA = (
    '{% if tools %}Environment: ipython\nAnswer {"name": function name, "parameters": dictionary of arguments}'
    "{{ tools }}{% endif %}"
)
ROLES = "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}{% endfor %}"

LIST_OF_CALLS = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS][{{ m.tool_calls[0].function | tojson }}]"
    "{% endif %}{% endfor %}"
)
CASES: list[tuple[str, str | None, str, str | None, str | None]] = [
    # model, model_type, chat template, tool parser, reasoning parser
    ("DeepSeek V4.1", "deepseek_v41", "", "deepseek_v41", "deepseek_v41"),
    ("DeepSeek V4", "deepseek_v4", "", "deepseek_v4", "deepseek_v4"),
    ("DeepSeek V3.2", "deepseek_v32", "", "deepseek_v32", "deepseek_v3"),
    ("Kimi K3", "kimi_k3", "", "kimi_k3", "kimi_k3"),
    ("Inkling", "inkling", "", "inkling", "inkling"),
    ("Mistral", "mistral", f"[AVAILABLE_TOOLS]{LISTED}[INST][TOOL_CALLS]", "mistral", None),
    ("Mistral", "mistral3", f"{LISTED}[TOOL_CALLS][THINK][/THINK]", "mistral", "mistral"),
    ("Mistral with <think>", "mistral", f"{LISTED}[TOOL_CALLS] Write <think>", "mistral", "qwen3"),  # Magistral 2506
    ("DeepSeek V3.1", "deepseek_v3", f"{LISTED}{DEEPSEEK}{THINKING}", "deepseek_v31", "deepseek_v3"),
    ("DeepSeek V3 and R1", "deepseek_v3", f"{LISTED}{DEEPSEEK}", "deepseek_v3", None),
    ("DeepSeek V3 and R1", "deepseek_v3", f"{DEEPSEEK}<think>\n", "deepseek_v3", "deepseek_r1"),
    ("DeepSeek V3 and R1", "deepseek_v3", f"{LISTED}{DEEPSEEK}{CUT_THOUGHTS}", "deepseek_v3", "deepseek_r1"),
    ("DeepSeek V3 and R1", "qwen2", f"{DEEPSEEK}<think>\n", "deepseek_v3", "deepseek_r1"),  # a distilled one
    ("DeepSeek V3 and R1", "llama", f"{DEEPSEEK}<think>\n", "deepseek_v3", "deepseek_r1"),
    ("Kimi K2", "kimi_k2", f"{LISTED}<|im_user|>user<|im_middle|>", "kimi_k2", None),
    ("Kimi K2", "kimi_k25", f"{LISTED}<|im_user|>user<|im_middle|><think></think>", "kimi_k2", "kimi_k2"),
    ("GLM 4.5 and later", "glm4_moe", f"[gMASK]<sop>{LISTED}<tool_call>f<arg_key>k</arg_key><think>", "glm45", "glm45"),
    ("GLM 4.5 and later", "glm_moe_dsa", f"[gMASK]<sop>{LISTED}<arg_key>k</arg_key><think>", "glm45", "glm45"),
    ("MiniMax M2", "minimax_m2", f"{LISTED}<minimax:tool_call><invoke name='f'><think>", "minimax_m2", "minimax_m2"),
    ("Seed-OSS", "seed_oss", f"{LISTED}<seed:tool_call><function=f><seed:think>", "seed_oss", "seed_oss"),
    ("Gemma 4", "gemma4", f"<|turn>{LISTED}<|tool_call>call:f{{}}<tool_call|><|channel>thought", "gemma4", "gemma4"),
    ("Gemma 4", "gemma4", "<|turn>model\n<|channel>thought", "gemma4", "gemma4"),  # fine-tuned without tools
    ("FunctionGemma", "gemma3_text", f"{LISTED}<start_function_call>call:f", "functiongemma", None),
    ("Apertus", "apertus", f"{LISTED}<|tools_prefix|>[]<|tools_suffix|>", "apertus", None),
    ("LongCat 2", "longcat_flash", f"{LISTED}<longcat_tool_call><longcat_arg_key>", None, None),
    ("K2 Horizon", "any", f"{LISTED}<ifm|tool_call>", "k2_horizon", "k2_horizon"),
    ("Mistral's lists of calls", "mistral", f"{LISTED}{LIST_OF_CALLS}", "xlam", None),
    ("LongCat", "longcat_flash", f"{LISTED}<longcat_tool_call>", "longcat", None),
    ("Granite 4.2", "granitemoehybrid", f"{ROLES}{CODER}<think>", "qwen3_coder", "granite_thinking_parser"),
    ("Granite 4", "granitemoehybrid", f"{ROLES}{HERMES}", "granite4", None),
    ("Granite 3", "granite", f"{ROLES}{LISTED}<|tool_call|>", "granite", None),
    ("Granite 3", "granite", f"{ROLES}{LISTED}Begin with 'Here is my thought process:'", "granite", "granite"),
    ("Cohere MoE", "cohere2_moe", f"{LISTED}<|START_TEXT|>", "cohere_command4", "cohere_command4"),
    ("Cohere Command", "cohere2", f"{LISTED}<|START_RESPONSE|>", "cohere_command3", "cohere_command3"),
    ("Llama 4 in Python", "llama4", f"<|header_start|>{LISTED}[func_name1(params)]", "llama4_pythonic", None),
    ("Llama 4", "llama4", f"<|header_start|>{LLAMA}", None, None),
    ("Calls in Python", "gemma3", f"<start_of_turn>{LISTED}[func_name1(params)]", "pythonic", None),
    ("Calls in Python", "llama", f"<|start_header_id|>{LISTED}[func_name1(params)]", "pythonic", None),
    ("Llama 3", "llama", f"<|start_header_id|>{LLAMA}", "llama3_json", None),
    ("MiniMax M3", "minimax_m3_vl", f"{LISTED}<mm:think>", "minimax_m3", "minimax_m3"),
    ("HY V4", "hy_v4", f"{LISTED}<tool_calls><think>", "hy_v4", "hy_v4"),
    ("HY V3", "hy_v3", f"{LISTED}<tool_calls><think>", "hy_v3", "hy_v3"),
    ("Hunyuan A13B", "hunyuan_v1_moe", f"{LISTED}<tool_calls>[]</tool_calls><think>", "hunyuan_a13b", "hunyuan_a13b"),
    ("Ling 3", "bailing_moe_v3", f"{LISTED}<tool_call>f<arg_key>k</arg_key><think>", "ling3", "ling3"),
    ("Laguna", "laguna", f"{LISTED}<tool_call>f<arg_key>k</arg_key><think>", "poolside_v1", "poolside_v1"),
    ("ERNIE 4.5", "ernie4_5_moe", f"{HERMES}<response></response><think>", "ernie45", "ernie45"),
    ("LFM2", "lfm2", f"{LISTED}<|tool_list_start|>", "lfm2", None),
    ("Olmo 3", "olmo3", f"{LISTED}<function_calls><think>", "olmo3", "olmo3"),
    ("Step 3.5", "step3p5", f"{CODER}<think>", "step3p5", "step3p5"),
    ("Step 3", "step3_vl", f"{LISTED}<steptml:invoke name='f'><think>", "step3", "step3"),
    ("MiMo V2", "mimo_v2_flash", f"{CODER}<think>", "mimo", "mimo"),
    ("Nemotron 3", "nemotron_h", f"{CODER}{SWITCHED}", "qwen3_coder", "nemotron_v3"),
    ("Qwen3-Coder's form", "qwen3_moe", f"{CHATML}{CODER}", "qwen3_coder", None),
    ("Qwen3-Coder's form", "qwen3_5_moe", f"{CHATML}{CODER}{SWITCHED}", "qwen3_coder", "qwen3"),
    ("Qwen3-Coder's form", "anything", f"{CODER}", "qwen3_coder", None),
    ("Qwen3-Coder's form", "anything", f"{CODER}{SWITCHED}", "qwen3_coder", "qwen3"),
    ("Hermes' form", "qwen2", f"{CHATML}{HERMES}", "hermes", None),  # Qwen2.5
    ("Hermes' form", "qwen2", f"{CHATML}{HERMES}{THINKS}", "hermes", "qwen3"),  # QwQ
    ("Hermes' form", "qwen3", f"{CHATML}{HERMES}{SWITCHED}", "hermes", "qwen3"),  # Qwen3
    ("Hermes' form", "qwen3_moe", f"{CHATML}{HERMES}", "hermes", None),  # Qwen3-Instruct-2507
    ("Hermes' form", "qwen3_moe", f"{CHATML}{HERMES}{THINKS}", "hermes", "qwen3"),  # Qwen3-Thinking-2507
    ("Hermes' form", "llama", f"{CHATML}{HERMES}", "hermes", None),  # Hermes 2 Pro and 3
    ("Hermes' form", "llama", f"{CHATML}{HERMES}{THINKING}", "hermes", "qwen3"),  # Hermes 4
    ("Hermes' form", "other", f"{CHATML}{HERMES}{SWITCHED}", "hermes", "qwen3"),
    ("Hermes' form", "qwen3_moe", f"{HERMES}{SHOWN_CALL}{CUT_THOUGHTS}", "hermes", "qwen3"),
    ("Hermes' form", "llama", f"{CHATML}{HERMES}{{% if enable_thinking %}}Think.{{% endif %}}", "hermes", "qwen3"),
    ("GLM's form", "glm4", f"{LISTED}{PAIRS}<arg_key>", "glm45", None),
    ("GLM 4.1V", "glm4v", "[gMASK]<sop>", None, "glm45"),
    ("MiniCPM 5", "llama", f"{LISTED}<function name='f'>", "minicpm5", None),
    (
        "GigaChat 3",
        "deepseek_v3",
        f"<|role_sep|>{LISTED}{CALLS}function call<|role_sep|>{JSON}{END_CALLS}",
        "gigachat3",
        None,
    ),
    ("InternLM 2.5", "internlm2", f"{LISTED}<|action_start|><|plugin|>", "internlm", None),
    ("Muse Glimmer", "muse_glimmer", f"{LISTED}<atem:function_calls>", "muse_glimmer", "muse_glimmer"),
    ("xLAM", "llama", f"{LISTED}make calls in a single JSON array", "xlam", None),
    ("Jamba", "jamba", f"{LISTED}<tool_calls>", "jamba", None),
    ("Granite 20B", "gpt_bigcode", f"{LISTED}<function_call>", "granite-20b-fc", None),
    ("Dots 3", "dots3_note", f"{LISTED}<think>", "dots", "qwen3"),
    ("PLaMo 3", "plamo3", f"{LISTED}<think>", "plamo3", "plamo3"),
    ("K2 Horizon", "k2_horizon", f"{LISTED}<think_fast>", "k2_horizon", "k2_horizon"),
    ("Phi-4-mini", "phi3", f"{LISTED}<|tool|>", None, None),
]


def test_a_config_and_a_template_name_the_parsers() -> None:
    for family, model_type, template, tools, reasoning in CASES:
        reading = reading_of(ModelFiles(model_type, template))
        assert (reading.format, reading.tool_parser, reading.reasoning_parser) == ("chat", tools, reasoning), family
        assert reading.reason.startswith(f"{family}: ")
    assert {family.name for family in FAMILIES if family.format == "chat"} == {case[0] for case in CASES}
    assert all(family.types or family.marks for family in FAMILIES)


def test_gpt_oss_speaks_harmony_whatever_its_template_says() -> None:
    reading = reading_of(ModelFiles("gpt_oss", HERMES))
    assert (reading.format, reading.tool_parser, reading.reasoning_parser) == ("harmony", None, None)


@pytest.mark.parametrize(
    "files",
    [
        ModelFiles(),
        ModelFiles("mamba", CHATML),
        ModelFiles("phi3", LISTED),
        ModelFiles("llava", f"{HERMES}{IN_A_LIST}"),
        ModelFiles("qwen3", f"{HERMES}{AS_MCP}"),
    ],
)
def test_a_model_of_no_known_family_neither_calls_nor_reasons(files: ModelFiles) -> None:
    reading = reading_of(files)
    assert (reading.format, reading.tool_parser, reading.reasoning_parser) == ("chat", None, None)
    assert reading.reason == UNKNOWN


def test_any_template_with_a_mark_of_thoughts_has_a_reasoning_parser() -> None:
    for model_type in ("phi3", "nemotron_h", "lfm2", "anything"):
        for mark in ("<think>", "{{ message.content.split('</think>')[-1] }}"):
            assert reading_of(ModelFiles(model_type, f"{CHATML}{mark}")).reasoning_parser == "qwen3"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (f"{HERMES}{SHOWN_CALL}", "a call was probed"),
        (HERMES, "its chat template shows no calls"),
        (f"{HERMES}{{{{ raise_exception('No.') }}}}", "its chat template shows no calls"),
    ],
)
def test_a_probe_says_how_a_template_writes_calls(template: str, said: str) -> None:
    assert said in reading_of(ModelFiles("smollm3", template)).reason


@pytest.mark.parametrize(("model_type", "template"), [("llama4", "<|header_start|>"), ("phi3", "<|tool|>")])
def test_the_reason_says_why_a_known_family_calls_no_tools(model_type: str, template: str) -> None:
    reading = reading_of(ModelFiles(model_type, template + LISTED))
    assert reading.tool_parser is None
    assert "vLLM's" in reading.reason


def test_mistrals_own_tokenizer_needs_no_template_to_show_tools() -> None:
    assert reading_of(ModelFiles(None, "[TOOL_CALLS]", is_mistral=True)).tool_parser == "mistral"
