#!/usr/bin/env bash
# Produces most figures of README.md and benches/results/README.md. The latter lists the sections, and says which
# figures have other commands.
#
#   benches/run.sh                        every section (hours)
#   benches/run.sh memory step            some of them
#   benches/run.sh --list                 lists the sections
#   benches/run.sh --out FILE memory      a file other than benches/results/DATE-COMMIT.md
#   benches/run.sh --profile dev memory   another cargo profile; do not publish its figures
#
# Needs bash and cargo, and what a section names. The file starts with date, commit and hardware. Each command is
# followed by its unchanged output and its seconds. An existing file gets the new sections at its end. A command that
# fails is marked; the script continues, and fails at its end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

profile=() out="" failed=0
. benches/report.sh

# The sections, in order: a name, and its figures.
sections() {
    cat <<'LIST'
train_gpt       the default run: held-out loss, seconds
train_gpt-long  the losses of 1,800 steps on two ranks and on one
step            whole steps of every schedule, beside the plain loop and the simulator
parity          every schedule compared with the plain loop, bit for bit
memory          the peak of every rank, predicted and measured; sharded parameters
pytorch         the same model in PyTorch (installed under target/, or from $PYTHON), eager and compiled
matmuls         matmuls alone, by shape: compiled, gemm, and PyTorch (installed, or from $PYTHON)
split           F, B, I and W of one stage: eager, replayed, compiled, merged
models          a recurrent network, a U-Net and experts: eager, captured, compiled
plan            building and checking plans, the planner, passes
vocabulary      vocabulary parallelism: a heavy head, and the best cut; planned for published models, with groups
synthesis       synthesised schedules against the exact optimum
balance         even and optimal cuts
delay           a slow network: passes, the planner, AutoPipeline
choose          AutoPipeline compared with 1F1B, ten choices
link            links between processes (MPI too, if mpirun is found)
faults          fuzzing, random faults and connections, kills while saving (MPI too, if mpirun is found)
moe             load of experts; kernels on CubeCL's CPU runtime (needs LLVM, see .ci/llvm-for-cubecl.sh)
LIST
}

section() {
    case $1 in
    train_gpt) example train_gpt ;;
    train_gpt-long)
        build cargo build -q --release -p pipeline-examples --example train_gpt
        run benches/same_losses.sh --long
        ;;
    step)
        bench --bench step -- --rounds 5
        bench --bench step -- --rounds 5 --schedules 1F1B,ZBVZeroBubble --compile
        ;;
    parity) tests --test runtime every_schedule -- --nocapture ;;
    memory)
        bench --bench memory
        tests --test memory -- --nocapture
        ;;
    pytorch) bench --bench pytorch ;;
    matmuls) bench --bench matmuls ;;
    split) bench --bench split -- --rounds 7 ;;
    models) bench --bench models ;;
    plan)
        bench --bench plan
        tests --test plan overlap_growth -- --nocapture
        ;;
    vocabulary)
        bench --bench vocabulary
        bench --bench vocabulary -- --ranks 4
        tests --test planner published_shapes -- --ignored --nocapture
        ;;
    synthesis) tests --test planner optimum -- --nocapture ;;
    balance) bench --bench balance -- --rounds 5 ;;
    delay)
        bench --bench delay -- --ranks 2 --sleep 10 --latency 10 --rounds 3
        bench --bench delay -- --ranks 4 --sleep 10 --latency 10 --rounds 3
        bench --bench delay -- --rounds 5
        ;;
    choose) bench --bench choose ;;
    link) if has_mpi; then bench --features benches/mpi --bench link; else bench --bench link; fi ;;
    faults)
        run nice -n 19 .ci/fuzz 600
        local mpi=()
        if has_mpi; then mpi=(--features pipeline-tests/mpi --test mpi); fi
        run env FAULTS=334 SEED=1 \
            cargo test -q --workspace "${mpi[@]}" --test runtime --test tcp at_random -- --nocapture
        run env FAULTS=200 SEED=1 cargo test -q --test tcp connections_at_random -- --nocapture
        run env KILLS=100 cargo test -q --test runtime kills_while_saving -- --nocapture
        ;;
    moe)
        example train_moe -- --steps 400 --d-model 64 --d-hidden 64 --seq 64 --batch 8 --microbatches 4 \
            --curves benches/results/moe-load.svg
        bench --features benches/cpu --bench moe
        ;;
    esac
}

names() { sections | cut -d ' ' -f 1; }

wanted=()
while [ $# -gt 0 ]; do
    case $1 in
    --list) sections && exit 0 ;;
    --out) out=${2:?--out needs a file} && shift ;;
    --profile) profile=(--profile "${2:?--profile needs a name}") && shift ;;
    *)
        if ! names | grep -qxF -- "$1"; then
            echo "there is no section \`$1\`; --list shows them" >&2
            exit 2
        fi
        wanted+=("$1")
        ;;
    esac
    shift
done
if [ ${#wanted[@]} -eq 0 ]; then mapfile -t wanted < <(names); fi
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
out=${out:-benches/results/$(date -u +%F)-$commit.md}
[ -s "$out" ] || head_of_file >"$out"
for name in "${wanted[@]}"; do
    printf '## %s\n\n%s\n\n' "$name" "$(sections | sed -nE "s/^$name +//p")" >>"$out"
    section "$name"
done
echo "written: $out" >&2
exit "$failed"
