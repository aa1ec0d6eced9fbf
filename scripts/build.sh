#!/usr/bin/env bash
# Builds the program with the profile PROFILE. `release`, the default, is what is shipped: the same source gives the same bytes,
# wherever it lies (`make reproducible` compares). `dev` is the build of the tests, ready in a third of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-release}
if [ "$profile" != dev ]; then
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    # No path of this machine in messages of panics and asserts. Not in .cargo/config.toml: debug builds name files as they are,
    # and other flags would build all of it again beside the tests' build.
    export RUSTFLAGS="--remap-path-prefix=$PWD=/windlass --remap-path-prefix=$cargo_home=/cargo ${RUSTFLAGS:-}"
    export CFLAGS="-ffile-prefix-map=$PWD=/windlass -ffile-prefix-map=$cargo_home=/cargo ${CFLAGS:-}"
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    export SOURCE_DATE_EPOCH
fi
if [ "$profile" = dev ]; then
    # With the features of the whole workspace, as tests have them: whatever was built for them is not built again.
    exec cargo build --locked --workspace --bin windlass
fi
exec cargo build --locked -p windlass --profile "$profile"
