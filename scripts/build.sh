#!/usr/bin/env bash
# Builds the release binary so that the same source gives the same bytes, wherever it lies; `make reproducible` compares. PROFILE is another
# profile of cargo, for trying that with less work.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# No path of this machine in messages of panics and asserts. Not in .cargo/config.toml: debug builds name files as they are.
export RUSTFLAGS="--remap-path-prefix=$PWD=/windlass --remap-path-prefix=$cargo_home=/cargo ${RUSTFLAGS:-}"
export CFLAGS="-ffile-prefix-map=$PWD=/windlass -ffile-prefix-map=$cargo_home=/cargo ${CFLAGS:-}"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
exec cargo build --locked -p windlass --profile "${PROFILE:-release}"
