#!/usr/bin/env bash
# Trains `train_gpt` with these flags on two ranks and on one, and compares the losses of all steps to the last
# digit: `benches/same_losses.sh --long`. Prints the held-out losses and some steps' losses; fails if any step's
# differ.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ranks in 2 1; do
    cargo run -q --release -p pipeline-examples --example train_gpt -- "$@" --ranks "$ranks" --log json --trace "$folder/trace" \
        >"$folder/$ranks" 2>"$folder/err" || { cat "$folder/err"; exit 1; }
    sed -n "s/^held-out/$ranks rank(s): held-out/p" "$folder/err"
    grep -o '"loss":[^,]*' "$folder/$ranks" | cut -d : -f 2 >"$folder/losses-$ranks"
done
echo '| step | loss on 2 ranks | on 1 rank |'
echo '|---|---|---|'
paste "$folder/losses-2" "$folder/losses-1" | awk '
    $1 != $2 { differ++ }
    NR == 1 || NR == 100 || NR % 300 == 0 { printf "| %d | %.6f | %.6f |\n", NR, $1, $2 }
    END { printf "\n%d of %d losses differ\n", differ, NR; exit differ > 0 || NR == 0 }'
