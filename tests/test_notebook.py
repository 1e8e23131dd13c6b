"""The notebook runs from its first cell to its last, on a few rows and a tiny model, and is kept without outputs.

It is executed as Jupyter would, by nbclient, in a copy of the program; its values come from the environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "minbert.ipynb"
ARCHIVE = "cs224n_default_final_project_submission.zip"


def test_it_is_kept_without_outputs_and_for_a_gpu():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 4
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert notebook["metadata"]["accelerator"] == "GPU" and notebook["metadata"]["colab"]["gpuType"] == "T4"


def test_what_it_asks_for_is_what_the_commands_take():
    """The options that a reader gets without the test's environment."""
    from multitask_classifier import get_args

    source = "".join("".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])
    (options,) = re.findall(r'"MINBERT_OPTIONS", "(.*)"\)', source)
    args = get_args(options.split())
    assert args.option == "finetune" and args.use_gpu  # hours on Colab's two cores are no fallback
    assert '"./setup.sh --full"' in source and '"./setup.sh python"' in source


@pytest.mark.skipif(sys.platform == "win32", reason="its commands are a shell's")
def test_it_runs_from_start_to_end(program, tmp_path, monkeypatch):
    for package in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: requirements-test.txt")
    import nbformat
    from nbclient import NotebookClient

    folder = tmp_path / "minbert"
    shutil.copytree(program, folder, ignore=shutil.ignore_patterns("runs", "predictions", "cache", "__pycache__"))
    (folder / "notebooks").mkdir()
    for name, value in {
        "MINBERT_SETUP": "true",
        "MINBERT_PYTHON": f"'{sys.executable}'",
        "MINBERT_OPTIONS": "--option finetune --model tiny --epochs 1 --batch_size 4 --device cpu",
        "MINBERT_SUBMIT": "--force",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }.items():
        monkeypatch.setenv(name, value)
    begun = f"'{sys.executable}' multitask_classifier.py --run runs/notebook {os.environ['MINBERT_OPTIONS']}"
    subprocess.run(begun, shell=True, cwd=folder, check=True, capture_output=True)
    for path in sorted((folder / "runs" / "notebook").rglob("*"), reverse=True):
        if path.name != "config.json" or path.parent.name != "notebook":  # as one killed before its first checkpoint
            path.rmdir() if path.is_dir() else path.unlink()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder / "notebooks")}}
    ).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "leaderboard score" in said and "sentiment (SST-5)" in said
    shown = [
        output["data"].get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "data" in output
    ]
    assert any("srcdoc=" in page and "&lt;html" in page for page in shown)
    assert (folder / ARCHIVE).is_file() and (folder / "runs" / "notebook" / "scores.json").is_file()
    assert f"the archive stands in {folder}" in said
