#!/usr/bin/env bash
# Builds the program from nothing, once as `make run` does and once as it is shipped, and tells what each takes. Crates are fetched
# before, so that the network has no part in it.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cargo fetch --locked --quiet

TIMEFORMAT='%R %U %S'
declare -A wall cpu size
for profile in dev release; do
    echo "building with the profile $profile" >&2
    figures=$( { time PROFILE=$profile CARGO_TARGET_DIR=$scratch/$profile scripts/build.sh >"$scratch/log" 2>&1; } 2>&1) ||
        { cat "$scratch/log" >&2; exit 1; }
    read -r real user system <<<"$figures"
    wall[$profile]=$real
    cpu[$profile]=$(awk "BEGIN { print $user + $system }")
    binary=$(find "$scratch/$profile" -maxdepth 2 -name windlass -type f)
    size[$profile]=$(stat -c %s "$binary")
done
awk -v wq="${wall[dev]}" -v wr="${wall[release]}" -v cq="${cpu[dev]}" -v cr="${cpu[release]}" -v sq="${size[dev]}" -v sr="${size[release]}" 'BEGIN {
    printf "%-12s %12s %12s %8s\n", "", "make run", "shipped", "ratio"
    printf "%-12s %10.0f s %10.0f s %8.2f\n", "wall clock", wq, wr, wq / wr
    printf "%-12s %10.0f s %10.0f s %8.2f\n", "CPU time", cq, cr, cq / cr
    printf "%-12s %9.1f MB %9.1f MB\n", "file", sq / 1e6, sr / 1e6
}'
