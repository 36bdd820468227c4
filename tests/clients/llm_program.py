"""Runs commands of `llm` one after another in one process, whose imports take longer than the commands.

Each line of stdin is the arguments of one, each line of stdout {"status", "stdout", "stderr"}, all as JSON.
"""

from __future__ import annotations

import json
import sys

from click.testing import CliRunner
from llm.cli import cli


def main() -> None:
    runner = CliRunner()
    for line in sys.stdin:
        home, *arguments = json.loads(line)
        done = runner.invoke(cli, arguments, env={"LLM_USER_PATH": home})
        answer = {"status": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
