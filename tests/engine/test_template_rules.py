"""What strict templates refuse is found by vLLM's own rendering of them, and what is shaped for them is rendered."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engine.cases import demo_model
from workers.engine.template_efforts import EFFORTS
from workers.engine.template_rules import ANY_ORDER, TemplateRules
from workers.formats.chat.shape import shaped

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import

STRICT = """
{%- if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('No user query.') }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must be first.') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

DEMO_EFFORTS = {effort: "none" if effort in ("none", "minimal") else "medium" for effort in EFFORTS}


@pytest.mark.parametrize(
    ("template", "rules"), [(None, ANY_ORDER), (STRICT, TemplateRules(later_system=False, no_user_first=False))]
)
def test_the_rules_of_a_template_are_found_when_it_is_loaded(
    tmp_path: Path, template: str | None, rules: TemplateRules
) -> None:
    from vllm.renderers import renderer_from_config

    from workers.engine.vllm import compat
    from workers.engine.vllm.arguments import engine_args
    from workers.engine.vllm.rendering import Rendering

    model = demo_model()
    folder = tmp_path / "model"
    shutil.copytree(model.path, folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    config = compat.config_of(engine_args(demo_model(path=str(folder))))
    renderer = renderer_from_config(config)
    try:
        rendering = Rendering(SimpleNamespace(renderer=renderer, model_config=config.model_config), {})
        assert rendering.rules == rules
        assert rendering.efforts == (dict.fromkeys(EFFORTS) if template else DEMO_EFFORTS)
        sent = [{"role": role, "content": role} for role in ("system", "assistant", "system")]
        rendering._renderer.render(shaped(sent, rules), {"add_generation_prompt": True})
    finally:
        renderer.shutdown()
