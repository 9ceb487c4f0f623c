#!/usr/bin/env bash
# Produces the figures of README.md and benches/results/README.md: one section for each table or group of figures.
#
#   benches/run.sh                        every section (hours)
#   benches/run.sh memory step            some of them
#   benches/run.sh --list                 what there is
#   benches/run.sh --out FILE memory      elsewhere than benches/results/DATE-COMMIT.md
#   benches/run.sh --profile dev memory   another profile of cargo; its figures are no results
#
# Needs bash and cargo, and what a section names. What a command prints goes into the file as it is, after the command, with its seconds;
# the file starts with date, commit and hardware. A file that is there already gets the new sections at its end. A command that
# fails is marked, and the script goes on and fails at its end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

profile=() out="" failed=0

# The sections, in order: name, and what its figures are.
sections() {
    cat <<'LIST'
train_gpt       the default run: held-out loss, seconds
train_gpt-long  the losses of 1,800 steps on two ranks and on one
step            whole steps of every family, beside the plain loop and the simulator
parity          every family against the plain loop, bit for bit
memory          the peak of every rank, predicted and measured; sharded parameters
pytorch         the same model in PyTorch (installed under target/, or of $PYTHON), eager and compiled
split           F, B, I and W of one stage: eager, replayed, compiled, merged
plan            building and proving plans, the planner, passes
synthesis       synthesised schedules against the exact optimum
balance         even and optimal cuts
delay           a slow network: passes, the planner, AutoPipeline
choose          AutoPipeline against 1F1B, ten choices
link            links between processes (MPI too, where mpirun is found)
faults          fuzzing, faults and connections at random, kills while saving (MPI too, where mpirun is found)
moe             load of experts; kernels on CubeCL's CPU runtime (needs LLVM, see .ci/llvm-for-cubecl.sh)
LIST
}

# Runs a command, and writes it, what it printed and its seconds.
run() {
    local began=$SECONDS status=0
    echo "running: $*" >&2
    printf '`%s`\n\n```text\n' "$*" >>"$out"
    "$@" >>"$out" 2>&1 </dev/null || status=$?
    printf '```\n\n%s s' "$((SECONDS - began))" >>"$out"
    if [ "$status" -ne 0 ]; then
        printf '; **failed, status %s**' "$status" >>"$out"
        echo "failed, status $status: $*" >&2
        failed=1
    fi
    printf '\n\n' >>"$out"
}

# Builds what a command runs, so that the command's seconds are its own. If that fails, so will the command, and say why.
build() {
    local arguments=() argument
    for argument in "$@"; do
        if [ "$argument" = -- ]; then break; fi
        arguments+=("$argument")
    done
    echo "building: ${arguments[*]}" >&2
    "${arguments[@]}" >/dev/null 2>&1 </dev/null || true
}

bench() {
    build cargo bench -q "${profile[@]}" --no-run "$@"
    run cargo bench -q "${profile[@]}" "$@"
}
example() {
    build cargo build -q "${profile[@]:---release}" --example "$@"
    run cargo run -q "${profile[@]:---release}" --example "$@"
}
tests() {
    build cargo test -q --no-run "$@"
    run cargo test -q "$@"
}
has_mpi() { command -v mpirun >/dev/null; }

section() {
    case $1 in
    train_gpt) example train_gpt ;;
    train_gpt-long)
        example train_gpt -- --long --log json
        example train_gpt -- --long --ranks 1 --log json
        ;;
    step)
        bench --bench step -- --rounds 5
        bench --bench step -- --rounds 5 --families 1F1B,ZBVZeroBubble --compile
        ;;
    parity) tests --test runtime every_family -- --nocapture ;;
    memory)
        bench --bench memory
        tests --test memory -- --nocapture
        ;;
    pytorch) bench --bench pytorch ;;
    split) bench --bench split -- --rounds 7 ;;
    plan)
        bench --bench plan
        tests --test plan overlap_growth -- --nocapture
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
        run .ci/fuzz 600
        local mpi=()
        if has_mpi; then mpi=(--features pipeline-tests/mpi --test mpi); fi
        run env FAULTS=334 SEED=1 cargo test -q --workspace "${mpi[@]}" --test runtime --test tcp at_random -- --nocapture
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

hardware() {
    local cpu memory
    cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
    memory=$(sed -nE 's/^MemTotal: *([0-9]+) kB/\1/p' /proc/meminfo 2>/dev/null)
    printf -- '- processor: %s, %s cores\n' "${cpu:-$(uname -m)}" "$(getconf _NPROCESSORS_ONLN)"
    printf -- '- memory: %s\n' "${memory:+$((memory / 1024 / 1024)) GiB}"
    printf -- '- system: %s; load when it began: %s\n' "$(uname -sr)" "$(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null)"
    printf -- '- compiler: %s\n' "$(rustc --version)"
}

# Date, commit and hardware.
head_of_file() {
    local changed=""
    git diff --quiet HEAD 2>/dev/null || changed=", with changes that are not committed"
    printf '# Measured on %s\n\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
    printf -- '- commit: `%s`%s\n' "$(git rev-parse HEAD 2>/dev/null || echo unknown)" "$changed"
    hardware
    printf '\nEach block holds what the command above it printed (`benches/run.sh`).\n\n'
}

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
