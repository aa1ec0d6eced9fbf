#!/usr/bin/env bash
# Records which functions of the shipped program run while a node starts, pods live and people ask for them, and writes
# packaging/function-order.txt. The end-to-end tests do all that, some forty times slower under valgrind than they expect: one that
# fails because of that has run what counts all the same.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
scripts/dockerd.sh
tests/images/build.sh --all
scripts/test-images.sh
keep=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$keep"' EXIT
target=${CARGO_TARGET_DIR:-target}
# Linked again, whether it was built before or not.
rm -f "$target"/release/windlass "$target"/release/deps/windlass-*
FUNCTION_ORDER_KEEP=$keep scripts/build.sh
mapfile -d '' -t arguments <"$keep/arguments"
for i in "${!arguments[@]}"; do
    case ${arguments[i]} in
    -o) arguments[i + 1]=$keep/windlass ;;
    -Wl,--strip-all) arguments[i]=-Wl,--gc-sections ;;
    esac
done
cc "${arguments[@]}"

cat >"$keep/traced" <<END
#!/bin/sh
case \$1 in
up | agent | proxy)
    exec valgrind --quiet --tool=callgrind --demangle=no --dump-every-bb=300000000 --callgrind-out-file=$keep/trace.%p $keep/windlass "\$@" ;;
*) exec $keep/windlass "\$@" ;;
esac
END
chmod +x "$keep/traced"
cargo build --locked --workspace --tests
program=$(cargo test --locked -p windlass-tests --test e2e --no-run 2>&1 | sed -n 's/.*(\(.*e2e-[0-9a-f]*\))$/\1/p')
program=$(realpath "$program")
for test in proxy::windlass_proxy_replaces kubectl::kubectl_verbs quickstart:: lifecycle::probes idle::nothing usage:: logs::logs_as \
    streams::commands:: storage::persistent node_api::the_node_api metrics::metrics_are; do
    echo "tracing $test"
    (cd tests && WINDLASS_BIN=$keep/traced timeout 400 "$program" --test-threads=1 "$test" >"$keep/log" 2>&1) || echo "ended with $?"
done
scripts/function_order.py record "$keep/object" "$keep"/trace.* >"$keep/list"
mv "$keep/list" packaging/function-order.txt
