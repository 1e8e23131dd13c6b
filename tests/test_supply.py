"""What the project is made of: versions pinned, licences stated, and a line that lists what an upgrade brings.

Follows PEP 440 (versions) and pip's `install --dry-run`.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

import course_data
import weights

REQUIREMENTS = sorted(ROOT.glob("requirements*.txt"))
PINNED = re.compile(r'[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*(; python_version (>=|<) "3\.\d+")?')


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_requirement_is_one_version(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if not PINNED.fullmatch(line)] == []


def test_each_python_gets_one_pin():
    """A package that has two has them for Pythons that leave none out and share none."""
    for path in REQUIREMENTS:
        found = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                name, _, rest = line.partition("==")
                found.setdefault(name, []).append(rest.partition("; ")[2])
        for name, markers in found.items():
            if markers != [""]:
                older, newer = sorted(markers)
                assert (older.replace("<", "|"), name) == (newer.replace(">=", "|"), name)


def test_what_is_fetched_is_known_by_its_hash():
    setup = (ROOT / "setup.sh").read_text(encoding="utf-8")
    assert re.search(r"^EMBEDDED='[\w-]+==[0-9.]+'", setup, re.MULTILINE)
    for known in weights.KNOWN.values():
        assert re.fullmatch(r"[0-9a-f]{40}", known.revision)
        assert all(re.fullmatch(r"[0-9a-f]{64}", file.sha256) and file.size for file in known.files)
    assert course_data.COMMIT in course_data.ADDRESS and len(course_data.COMMIT) == 40
    assert all(re.fullmatch(r"[0-9a-f]{40}", blob) for blob in course_data.BLOBS.values())


def test_licences_are_stated():
    """Of the code, of each of the weights that has a name here, of the sample and of the course's data."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Licences\n")[2].partition("\n## ")[0]
    assert section and (ROOT / "LICENSE").read_text(encoding="utf-8").lstrip().startswith("Apache License")
    for name in ("Apache-2.0", "code", "sample", "course's data", *weights.KNOWN):
        assert name in section, name


def wheel(folder, name, version, requires=()):
    """A package of nothing, as pip installs it."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    described += "".join(f"Requires-Dist: {other}\n" for other in requires)
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", described)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_the_line_that_lists_what_an_upgrade_brings(tmp_path):
    """CONTRIBUTING.md's own, on requirements and packages made here: newer ones, those they need, nothing installed."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode or os.name == "nt":
        pytest.skip("this environment has no pip of its own, or no sed")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (sed .*pip install --dry-run.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    (tmp_path / "requirements.txt").write_text('minbert-one==1.0\nminbert-two==1.0; python_version >= "3.0"\n')
    (tmp_path / "requirements-test.txt").write_text("# more\ntqdm==1.0\n")
    packages = tmp_path / "packages"
    packages.mkdir()
    for name, version, requires in (
        ("minbert-one", "1.0", ()),
        ("minbert-one", "2.0", ("minbert-three",)),
        ("minbert-two", "1.5", ()),
        ("minbert-three", "0.1", ()),
        ("tqdm", "999.0", ()),
    ):
        wheel(packages, name, version, requires)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [shutil.which("bash"), "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    would = done.stdout.strip().splitlines()[-1]
    assert would.startswith("Would install ")
    assert {*would.split()[2:]} == {"minbert-one-2.0", "minbert-three-0.1", "minbert-two-1.5", "tqdm-999.0"}
    shown = subprocess.run([sys.executable, "-m", "pip", "show", "minbert-one"], capture_output=True)
    assert shown.returncode != 0
