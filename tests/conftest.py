"""What several tests share: the embedded weights, transformers' answers, and the real data where there is some.

Follows pytest's conftest convention.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import weights
from errors import InputError


@pytest.fixture
def reference(tmp_path):
    """reference(subcommand, request) -> answer of reference_transformers.py; both are what JSON can hold."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: nothing to compare with")
    script = Path(__file__).with_name("reference_transformers.py")
    asked, answered = tmp_path / "request.json", tmp_path / "answer.json"

    def ask(subcommand, request):
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-E", str(script), subcommand, str(asked), str(answered)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(answered.read_text(encoding="utf-8"))

    return ask


@pytest.fixture(scope="session")
def minilm():
    """The folder of the embedded weights, verified."""
    try:
        return weights.find("all-MiniLM-L6-v2").path
    except InputError as error:
        pytest.skip(f"the embedded weights can't be had: {error}")


@pytest.fixture(scope="session")
def real_data():
    """The folder that MINBERT_REAL_DATA names; without it the test is skipped."""
    folder = os.environ.get("MINBERT_REAL_DATA")
    if not folder:
        pytest.skip("MINBERT_REAL_DATA is not set: it names a folder with cs224n/, glue/, sts/, nli/ and search/")
    if not Path(folder).is_dir():
        pytest.fail(f"MINBERT_REAL_DATA names {folder}, which is not a folder")
    return Path(folder)
