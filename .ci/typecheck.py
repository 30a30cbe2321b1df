"""Run mypy on the package: the repository root is the package, so it needs a folder named lopa."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
with tempfile.TemporaryDirectory() as view:
    (Path(view) / "lopa").symlink_to(root)
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")]
    sys.exit(subprocess.run(command, cwd=root, env={**os.environ, "MYPYPATH": view}).returncode)
