"""The folder that holds all of Longhaul in site-packages, and the `longhaul` command.

A wheel has app, config, migrations and workers in this folder: site-packages gets one name, not four that others have,
too. In a checkout they lie at its top, which an editable installation puts on the path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Runs the command with Longhaul's own folder first on the path, of this process and of all that it starts."""
    if (HERE / "app").is_dir():
        sys.path.insert(0, str(HERE))
        others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(HERE))]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *others])
    from app.cli import main as run

    run()
