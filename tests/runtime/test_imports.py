from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import lopa

HEAVY = {
    "ml_dtypes",
    "onnx",
    "onnx_graphsurgeon",
    "onnx_ir",
    "onnxscript",
    "safetensors",
    "torch",
    "transformers",
}
PACKAGE = Path(lopa.__file__).parent
PROGRAM = """
import json, sys
import lopa
at_import = sorted(sys.modules)
session = lopa.open_bundle(sys.argv[1])
session.generate("hello", max_new_tokens=8)
print(json.dumps([at_import, sorted(sys.modules)]))
"""


def test_decoding_loads_no_heavy_library(tiny_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_bundle)],
        capture_output=True,
        text=True,
        check=True,
    )
    at_import, after = (set(names) for names in json.loads(done.stdout))
    assert not HEAVY & after
    assert "onnxruntime" in after
    assert not {"numpy", "tokenizers", "jinja2", "onnxruntime"} & at_import


def test_the_runtime_imports_no_other_part() -> None:
    """Also no heavy library, not even inside a function."""
    files = sorted((PACKAGE / "runtime").rglob("*.py"))
    assert len(files) > 10
    for file in files:
        depth = len(file.relative_to(PACKAGE / "runtime").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots = {alias.name.partition(".")[0] for alias in node.names}
                assert not roots & (HEAVY | {"lopa"}), file
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level <= depth, f"{file}:{node.lineno} leaves runtime"
            elif isinstance(node, ast.ImportFrom):
                root = str(node.module).partition(".")[0]
                assert root not in HEAVY | {"lopa"}, file


def test_export_and_graphs_do_not_import_each_other() -> None:
    """Of the runtime, both use only what describes and writes folders."""
    allowed = {"contract", "engine_check", "manifest", "staging"}
    for part, other in (("export", "graphs"), ("graphs", "export")):
        for file in sorted((PACKAGE / part).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.ImportFrom) or not node.level:
                    continue
                parts = str(node.module).split(".")
                leaves = node.level > len(file.relative_to(PACKAGE / part).parts)
                assert not (leaves and parts[0] in (other, "tools", "calibration")), file
                if leaves and parts[0] == "runtime" and "targets" not in file.parts:
                    assert parts[1] in allowed, file
