#!/usr/bin/env bash
# From nothing to a node with the examples applied: packages, program (the profile PROFILE), images, node. Says what goes on,
# since the first time takes minutes. The argument is the program's path.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:?the path of the program}
kubeconfig=/etc/windlass/admin.kubeconfig

step() { printf '\n[%s/4, after %d min %02d s] %s\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)) "$2"; }

step 1 "Docker Engine, iptables and what else a node needs; installed where it is missing"
scripts/install.sh build
scripts/install.sh run
scripts/dockerd.sh

step 2 "the program: some minutes the first time (5 on two cores, 15 with PROFILE=release), seconds later; cargo counts the crates"
scripts/build.sh

step 3 "images for the examples, made of this machine's own packages, since no registry is asked"
tests/images/build.sh

step 4 "the node"
kubectl=$(scripts/kubectl.sh)
"$program" up --detach >/dev/null
"$kubectl" --kubeconfig $kubeconfig apply -f docs/examples/
echo "waiting for the pods of docs/examples/web.yaml"
if ! "$kubectl" --kubeconfig $kubeconfig wait pod -l app=web --for=condition=Ready --timeout=60s >/dev/null; then
    printf '\nThe node runs, but the pods are not ready. Its warnings:\n\n' >&2
    "$kubectl" --kubeconfig $kubeconfig get events -A --field-selector type=Warning >&2
    printf '\nIts conditions: %s --kubeconfig %s describe nodes\n' "$kubectl" "$kubeconfig" >&2
    exit 1
fi

cat <<TEXT

The node runs. Its kubeconfig is $kubeconfig

  export KUBECONFIG=$kubeconfig PATH=$PWD/$(dirname "$program"):\$PATH
  $kubectl get pods,services -o wide
  curl http://127.0.0.1:30080/
TEXT
