#!/usr/bin/env bash
# Tests a machine with a GPU, then measures it, and writes Markdown for benches/results.
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
#
# For a machine without cargo (`bundle.sh`):
#
#   benches/gpu.sh --bundle FOLDER step   builds what these sections need for CUDA, into one folder. Without names:
#                                         all sections but `suites` and `fused`, whose own programs are as large as all
#                                         others together; each of the two fits into a folder of its own
#   FOLDER/gpu.sh [--within SECONDS]      on the other machine: each section into FOLDER/results/NAME.md, the most
#                                         important first; repeated calls continue where the last one was cut off
#
# There it needs bash, xz, the driver and, for NCCL and the comparison, a Python with PyTorch. `QUICK=1` is for the
# mock libraries of `tests/nccl` (`STAND_IN_ROOMS`): the sizes of benches are small, and tests of large ones are left
# out.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -e "$here/programs.tar.xz" ]; then cd "$here" || exit 1; else cd "$here/.." || exit 1; fi
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_NET_OFFLINE=true

profile=(--profile release) prefix="" out="" failed=0 device="" deadline="" folder="" needed=() python=${PYTHON:-python3}
. "$here/report.sh"
. "$here/bundle.sh"

sections() {
    cat <<'LIST'
tests     tests of CubeCL devices: kernels, queues, refusals, output release
suites    tests of the runtime and of experts on the device, compared with the plain loop there
nccl      ranks over NCCL, on 1 GPU to all of them (CUDA only)
step      steps: the plain loop, eager and captured stages, f32 and bf16; the cost of messages and their order
pytorch   the plain loop of `step` in PyTorch, if PYTHON (or python3) has it
hop       messages over NCCL compared with raw ncclSend and ncclRecv (CUDA only)
overlap   transfers over NCCL beside matmuls, by events (CUDA only)
streams   every schedule on ranks that share the device, bitwise equal to one rank, with 1, 4 and 8 queues
moe       kernels of experts compared with the same composed of tensor operations
fused     the same tests and steps with fused operations and tuned kernels
LIST
}

# Tests of `runtime` and of `moe` that run on any device, by name (`tests/device.rs`).
suites=(interleaved_captured recomputed_stages evaluations_before captured_and_recomputed
    replicas_equal_the_plain_loop_bit_for_bit_with_ordered every_cut_takes_up_what_one
    captured_stages_equal_the_plain_loop_with_uneven)

# A bundle is made for a machine with a GPU, and the mock libraries of `tests/nccl` are one.
gpus() { if [ -n "$folder${STAND_IN_ROOMS:-}" ]; then echo 1; else nvidia-smi --list-gpus 2>/dev/null | wc -l; fi; }
# shellcheck disable=SC2206
flags() { flags=("${profile[@]}" ${CARGO_FLAGS:-} --features "pipeline-tests/$1,benches/$1"); }
fuse() { flags+=(--features pipeline-tests/fusion,pipeline-tests/autotune,benches/fusion) prefix=fused-; }
none() { printf 'not run: there is no NVIDIA GPU\n\n' >>"$out"; }

# Runs a program of tests or a bench: from the folder of `--bundle`, or by cargo. While a bundle is made, notes it.
suite() {
    local kind=$1 name=$2
    shift 2
    if [ -n "$folder" ]; then
        needed+=("$prefix$kind $name")
    elif [ -e programs.tar.xz ]; then
        run "programs/$prefix$kind-$name" "$@"
    else
        build cargo test -q --no-run "${flags[@]}" --"$kind" "$name"
        run cargo test -q "${flags[@]}" --"$kind" "$name" -- "$@"
    fi
}

section() {
    local flags part streams gpu count rounds=(${ROUNDS:+--rounds "$ROUNDS"}) experts=() large=()
    if [ -n "${QUICK:-}" ]; then
        large=(--skip predicted --skip what_is_sent --skip ranks_compute_what)
        rounds=(--rounds 1 --layers 4 --width 8 --seq 8 --samples 4)
        experts=(--rounds 1 --tokens 16 --experts 4 --d-model 8 --d-hidden 8 --layers 2)
    fi
    prefix=""
    flags "$device"
    case $1 in
    tests) suite test cube --nocapture --test-threads 1 --skip queues --skip stand_in "${large[@]}" ;;
    suites)
        for part in runtime moe; do
            DEVICE=$device BURN_DEVICE=$device suite test "$part" --test-threads 1 "${suites[@]}"
        done
        ;;
    nccl)
        flags nccl
        count=$(gpus)
        for ((gpu = 0; gpu < count; gpu++)); do
            CUDA_VISIBLE_DEVICES=$(seq -s , 0 "$gpu") \
                suite test nccl --nocapture --test-threads 1 --skip stand_in "${large[@]}"
        done
        if [ "$count" -eq 0 ]; then none; fi
        ;;
    hop | overlap)
        flags nccl
        if [ "$(gpus)" -gt 0 ]; then suite bench nccl "$1"; else none; fi
        ;;
    step)
        suite bench device --device "$device" "${rounds[@]}"
        suite bench device --device "$device" --precision bf16 "${rounds[@]}"
        ;;
    pytorch)
        if [ -n "$folder" ]; then return; fi
        if "$python" -c 'import torch' 2>/dev/null; then
            run "$python" "$here/pytorch/device.py" --device "$device" "${rounds[@]}"
        else
            printf 'not run: `%s` has no PyTorch\n\n' "$python" >>"$out"
        fi
        ;;
    streams)
        for streams in 1 4 8; do
            STREAMS=$streams RUNS=${RUNS:-1} suite test cube queues::ranks_that_share --nocapture
        done
        ;;
    moe) suite bench moe "${experts[@]}" ;;
    fused)
        fuse
        CUBECL_AUTOTUNE_LEVEL=minimal suite test cube --test-threads 1 training:: queues:: release:: seam:: moe::
        suite bench device --device "$device" "${rounds[@]}"
        ;;
    esac
}

# Begins the file with the machine, unless it is there, and the section.
described() {
    if [ ! -s "$out" ]; then
        head_of_file >"$out"
        {
            printf -- '- device: %s\n' "$device"
            nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/- GPU: /'
            vulkaninfo --summary 2>/dev/null | sed -nE 's/^[[:space:]]*(deviceName|driverInfo)[[:space:]]*= */- \1: /p'
            printf '\n'
        } >>"$out"
    fi
    printf '## %s\n\n%s\n\n' "$1" "$(sections | sed -nE "s/^$1 +//p")" >>"$out"
}

wanted=()
while [ $# -gt 0 ]; do
    case $1 in
    --list) sections && exit 0 ;;
    --bundle) folder=${2:?--bundle needs a folder} && shift ;;
    --within) deadline=$((SECONDS + ${2:?--within needs seconds})) && shift ;;
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
if [ ${#wanted[@]} -eq 0 ]; then
    mapfile -t wanted < <(if [ -e sections ]; then cat sections; else sections | cut -d ' ' -f 1; fi)
    if [ -n "$folder" ]; then mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" | grep -vxE 'suites|fused'); fi
fi
if [ -n "$folder" ]; then bundle; exit; fi
if [ -e programs.tar.xz ]; then
    unpack || exit
    libraries
    slices
else
    out=${out:-benches/results/$(date -u +%F)-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)-$device.md}
    for name in "${wanted[@]}"; do
        described "$name"
        section "$name"
    done
    echo "written: $out" >&2
fi
exit "$failed"
