#!/usr/bin/env bash
# Measures the release binary with a program of the crate `bench`, such as `bench-agent` or `soak`, on a Docker Engine of its own. More
# arguments are the program's: `bench-cluster requests` counts requests alone.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?bench-agent, bench-cadvisor, bench-cluster, bench-controllers, bench-node, soak or storm}
shift
export PATH=$PATH:/usr/sbin:/sbin
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
# Optimized where it loads the cores that it shares with what it measures.
case $name in
bench-controllers) profile=client ;;
*) profile=dev ;;
esac
cargo build --locked -q --workspace --profile "$profile" --bin "$name"
WINDLASS_BIN=$PWD/target/release/windlass exec "target/${profile/dev/debug}/$name" "$@"
