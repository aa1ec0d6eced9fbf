#!/usr/bin/env bash
# Builds the program with the profile PROFILE. `release`, the default, is what is shipped: the same source gives the same bytes,
# wherever it lies (`make reproducible` compares). `dev` is the build of the tests, ready in a third of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${PROFILE:-release}
if [ "$profile" != dev ]; then
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    # No path of this machine in messages of panics and asserts. Not in .cargo/config.toml: debug builds name files as they are,
    # and other flags would build all of it again next to the tests' build.
    # Symbols are named by what they are, with all types, and not by a hash: functions are put in their order by that.
    export RUSTFLAGS="-Csymbol-mangling-version=v0 --remap-path-prefix=$PWD=/windlass --remap-path-prefix=$cargo_home=/cargo ${RUSTFLAGS:-}"
    export PATH=$PWD/scripts/link:$PATH
    export CFLAGS="-ffile-prefix-map=$PWD=/windlass -ffile-prefix-map=$cargo_home=/cargo ${CFLAGS:-}"
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    export SOURCE_DATE_EPOCH
fi
if [ "$profile" = dev ]; then
    # With the features of the whole workspace, as tests have them, and by the compiler that they were built with: whatever was
    # built for them is not built again.
    if [ -e "${CARGO_TARGET_DIR:-target}/debug/.with-lints" ]; then export RUSTC_WORKSPACE_WRAPPER=clippy-driver; fi
    exec cargo build --locked --workspace --bin windlass
fi
cargo build --locked -p windlass --profile "$profile"
# Nothing is said where another directory or linker was asked for; that is no failure of the build.
summary=$(ls -t "${CARGO_TARGET_DIR:-target}/$profile"/deps/windlass-*.order.summary 2>/dev/null | head -n 1 || true)
[ -z "$summary" ] || cat "$summary"
