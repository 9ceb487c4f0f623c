#!/usr/bin/env bash
# Tests a machine with a GPU, then measures it, and writes one Markdown file for benches/results.
#
#   benches/gpu.sh                        CUDA if `nvidia-smi` finds a GPU, else wgpu
#   benches/gpu.sh --device wgpu step     one device, some sections
#   benches/gpu.sh --list                 lists the sections
#   benches/gpu.sh --out FILE tests       a file other than benches/results/DATE-COMMIT-DEVICE.md
#   benches/gpu.sh --profile dev step     another cargo profile; do not publish its figures
#
# Needs bash, cargo with the crates of Cargo.lock downloaded (no network is used), the device's driver and, for CUDA,
# an LLVM as described in .ci/llvm-for-cubecl.sh. Every call of cargo gets `CARGO_FLAGS`. A command that fails is
# marked, and the script continues.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_NET_OFFLINE=true

profile=(--profile release) out="" failed=0 device="" python=${PYTHON:-python3}
. benches/report.sh

sections() {
    cat <<'LIST'
tests     tests of CubeCL devices: kernels, queues, refusals, output release
suites    tests of the runtime and of experts on the device, compared with the plain loop there
streams   every schedule on ranks that share the device, bitwise equal to one rank, with 1, 4 and 8 queues
nccl      ranks over NCCL, on 1 GPU to all of them (CUDA only)
hop       messages over NCCL compared with raw ncclSend and ncclRecv (CUDA only)
overlap   transfers over NCCL beside matmuls, by events (CUDA only)
step      steps: the plain loop, eager and captured stages; the cost of messages and their order
moe       kernels of experts compared with the same composed of tensor operations
pytorch   the plain loop of `step` in PyTorch, if PYTHON (or python3) has it
LIST
}

# Tests of `runtime` and of `moe` that run on any device, by name (`tests/device.rs`).
suites=(interleaved_captured recomputed_stages evaluations_before captured_and_recomputed
    replicas_equal_the_plain_loop_bit_for_bit_with_ordered every_cut_takes_up_what_one
    captured_stages_equal_the_plain_loop_with_uneven)

gpus() { nvidia-smi --list-gpus 2>/dev/null | wc -l; }
# shellcheck disable=SC2206
flags() { flags=("${profile[@]}" ${CARGO_FLAGS:-} --features "pipeline-tests/$1,benches/$1"); }
suite() {
    build cargo test -q --no-run "${flags[@]}" "$@"
    run cargo test -q "${flags[@]}" "$@"
}

section() {
    local flags streams gpu
    flags "$device"
    case $1 in
    tests) suite --test cube -- --nocapture --test-threads 1 --skip queues ;;
    suites) DEVICE=$device BURN_DEVICE=$device suite --test runtime --test moe -- --test-threads 1 "${suites[@]}" ;;
    streams)
        for streams in 1 4 8; do
            STREAMS=$streams RUNS=${RUNS:-1} suite --test cube queues::ranks_that_share -- --nocapture
        done
        ;;
    nccl)
        flags=("${profile[@]}" --features pipeline-tests/nccl)
        for ((gpu = 0; gpu < $(gpus); gpu++)); do
            CUDA_VISIBLE_DEVICES=$(seq -s , 0 "$gpu") suite --test nccl -- --nocapture --test-threads 1
        done
        if [ "$(gpus)" -eq 0 ]; then printf 'not run: there is no NVIDIA GPU\n\n' >>"$out"; fi
        ;;
    hop | overlap)
        if [ "$(gpus)" -gt 0 ] || [ -n "${STAND_IN_ROOMS:-}" ]; then
            flags nccl
            suite --bench nccl -- "$1"
        else
            printf 'not run: there is no NVIDIA GPU\n\n' >>"$out"
        fi
        ;;
    step) suite --bench device -- --device "$device" ${ROUNDS:+--rounds "$ROUNDS"} ;;
    moe) suite --bench moe ;;
    pytorch)
        if "$python" -c 'import torch' 2>/dev/null; then
            run "$python" benches/pytorch/device.py --device "$device" ${ROUNDS:+--rounds "$ROUNDS"}
        else
            printf 'not run: `%s` has no PyTorch\n\n' "$python" >>"$out"
        fi
        ;;
    esac
}

wanted=()
while [ $# -gt 0 ]; do
    case $1 in
    --list) sections && exit 0 ;;
    --device) device=${2:?--device needs a name} && shift ;;
    --out) out=${2:?--out needs a file} && shift ;;
    --profile) profile=(--profile "${2:?--profile needs a name}") && shift ;;
    *)
        if ! sections | cut -d ' ' -f 1 | grep -qxF -- "$1"; then
            echo "there is no section \`$1\`; --list shows them" >&2
            exit 2
        fi
        wanted+=("$1")
        ;;
    esac
    shift
done
if [ -z "$device" ]; then if [ "$(gpus)" -gt 0 ]; then device=cuda; else device=wgpu; fi; fi
if [ ${#wanted[@]} -eq 0 ]; then mapfile -t wanted < <(sections | cut -d ' ' -f 1); fi
out=${out:-benches/results/$(date -u +%F)-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)-$device.md}
if [ ! -s "$out" ]; then
    head_of_file >"$out"
    {
        printf -- '- device: %s\n' "$device"
        nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/- GPU: /'
        vulkaninfo --summary 2>/dev/null | sed -nE 's/^[[:space:]]*(deviceName|driverInfo)[[:space:]]*= */- \1: /p'
        printf '\n'
    } >>"$out"
fi
for name in "${wanted[@]}"; do
    printf '## %s\n\n%s\n\n' "$name" "$(sections | sed -nE "s/^$name +//p")" >>"$out"
    section "$name"
done
echo "written: $out" >&2
exit "$failed"
