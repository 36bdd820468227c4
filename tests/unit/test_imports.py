"""What a start imports. A killed API answers again within two seconds because this stays little."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    *("alembic", "anthropic", "boto3", "flower", "grpc", "httpx", "jinja2", "llguidance", "mcp", "numpy", "openai"),
    *("pandas", "PIL", "requests", "rich", "scipy", "tokenizers", "torch", "transformers", "vllm", "xgrammar"),
}
"""Packages that take a tenth of a second and more, or that nothing needs before the first request."""


def imported(code: str) -> set[str]:
    """The packages that a new interpreter has imported after `code`."""
    shown = f"{code}; import json, sys; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_the_api_imports_no_heavy_package_and_no_worker_at_its_start() -> None:
    assert not {*HEAVY, "workers"} & imported("import app.cli, app.main, app.local.programs")


def test_maintenance_imports_no_web_framework() -> None:
    assert not {*HEAVY, "fastapi", "starlette", "uvicorn", "workers"} & imported("import app.maintenance.__main__")


def test_the_command_imports_little_before_it_knows_what_to_run() -> None:
    assert not {*HEAVY, "celery", "fastapi", "redis", "sqlalchemy", "uvicorn"} & imported("import app.cli")


def test_a_process_that_waits_for_the_schema_does_without_alembic() -> None:
    assert not {"alembic", "mako"} & imported("import app.store.migrate")


def test_collection_of_garbage_is_off_while_the_api_imports_and_on_afterwards() -> None:
    code = "import gc; from config.memory import freeze_gc; gc.disable(); freeze_gc(); assert gc.isenabled()"
    assert "gc" in imported(code)
