#!/usr/bin/env bash
# Starts the node unless it runs, applies the examples, and says what to type next.
set -euo pipefail
cd "$(dirname "$0")/.."
kubeconfig=/etc/windlass/admin.kubeconfig
kubectl=$(scripts/kubectl.sh)

target/release/windlass up --detach >/dev/null
"$kubectl" --kubeconfig $kubeconfig apply -f examples/

echo "waiting for the pods of examples/web.yaml"
"$kubectl" --kubeconfig $kubeconfig wait pod -l app=web --for=condition=Ready --timeout=60s >/dev/null

cat <<TEXT

The node runs. Its kubeconfig is $kubeconfig

  export KUBECONFIG=$kubeconfig
  $kubectl get pods,services -o wide
  curl http://127.0.0.1:30080/
TEXT
