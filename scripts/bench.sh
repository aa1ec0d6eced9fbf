#!/usr/bin/env bash
# Runs a benchmark, mostly of the release binary: bench-agent, bench-api, bench-cadvisor, bench-cluster, bench-controllers,
# bench-extension, bench-instructions, bench-node, bench-policies, bench-proxy, bench-store, soak or storm. More arguments are
# the program's: `bench-cluster requests`
# counts requests alone, `bench-api compile` measures the build after a change alone, `bench-store DIRECTORY` says where it writes.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?the name of the benchmark}
shift
export PATH=$PATH:/usr/sbin:/sbin

# Programs that are no members of the workspace.
case $name in
bench-instructions)
    # Under valgrind; fails where a count is above its limit.
    version=0.20.0
    tools=$PWD/target/tools
    if ! [ -x "$tools/bin/gungraun-runner" ]; then
        cargo install gungraun-runner --version "$version" --locked --root "$tools"
    fi
    export GUNGRAUN_RUNNER=$tools/bin/gungraun-runner
    exec cargo bench --locked --manifest-path proxy/benches/instructions/Cargo.toml --target-dir target/instructions --bench rules
    ;;
bench-policies)
    exec cargo bench --locked -q -p windlass-proxy --profile client --bench network_policies
    ;;
bench-store)
    cargo build --locked --release --manifest-path control/store/benches/engines/Cargo.toml --target-dir target/bench-store
    exec target/bench-store/release/bench-store "${1:-target/bench-store/data}"
    ;;
esac

# Optimized where it loads the cores that it shares with what it measures.
case $name in
bench-api | bench-controllers | bench-extension) profile=client ;;
*) profile=dev ;;
esac
# A Docker Engine of its own, with images, where pods run.
case $name in
bench-api | bench-extension | bench-proxy) ;;
*)
    scripts/dockerd.sh
    tests/images/build.sh --all
    scripts/test-images.sh
    # The build of the tests, where there is one.
    if [ "$profile" = dev ] && [ -e "${CARGO_TARGET_DIR:-target}/debug/.with-lints" ]; then export RUSTC_WORKSPACE_WRAPPER=clippy-driver; fi
    ;;
esac
cargo build --locked -q --workspace --profile "$profile" --bin "$name"
program=target/${profile/dev/debug}/$name
export WINDLASS_BIN=$PWD/target/release/windlass
if [ "$name" = bench-api ] && [ $# -eq 0 ]; then
    "$program"
    set -- compile
fi
exec "$program" "$@"
