#!/usr/bin/env bash
# A real control plane on the machine of the boot tests, next to its node: etcd, kube-apiserver, kube-controller-manager and
# kube-scheduler of /root/assets as one service, which can be stopped and started as an API that goes away and comes back.
#   cluster.sh up      starts it, makes what kubeadm makes for nodes that join, and /root/cluster.kubeconfig
#   cluster.sh away    stops it; its objects stay
#   cluster.sh token   the bootstrap token, cluster.sh pin: the authority's public key, both as kubeadm prints them
set -euo pipefail
dir=/var/tmp/cluster
# An address of its own: the node's own API listens on the node's.
address=192.0.2.11
server=https://$address:6443
kubectl="/root/kubectl --kubeconfig /root/cluster.kubeconfig"

certificates() {
    [ ! -e "$dir/ca.crt" ] || return 0
    mkdir -p "$dir"
    cd "$dir"
    openssl genrsa -out sa.key 2048
    openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=kubernetes -days 30
    local name subject extension
    while IFS='|' read -r name subject extension; do
        openssl req -newkey rsa:2048 -nodes -keyout "$name.key" -out "$name.csr" -subj "$subject"
        openssl x509 -req -in "$name.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -out "$name.crt" -days 30 -extfile <(echo "$extension")
    done <<END
apiserver|/CN=kube-apiserver|subjectAltName=IP:127.0.0.1,IP:$address,IP:10.96.0.1
admin|/O=system:masters/CN=admin|extendedKeyUsage=clientAuth
kubelet-client|/O=system:masters/CN=kube-apiserver-kubelet-client|extendedKeyUsage=clientAuth
END
    cat >/root/cluster.kubeconfig <<END
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "$server", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: u, user: {client-certificate-data: $(base64 -w0 admin.crt), client-key-data: $(base64 -w0 admin.key)}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
END
    cd /root
}

# What the service runs: when one of them ends, all end.
serve() {
    cd "$dir"
    local etcd=http://127.0.0.1:2379 config=/root/cluster.kubeconfig
    /root/assets/etcd --data-dir etcd --unsafe-no-fsync --log-level warn --listen-client-urls $etcd --advertise-client-urls $etcd &
    # Not the address of the node, whose own API may listen there.
    /root/assets/kube-apiserver --etcd-servers=$etcd --bind-address=$address --advertise-address=$address \
        --client-ca-file=ca.crt --tls-cert-file=apiserver.crt --tls-private-key-file=apiserver.key \
        --kubelet-client-certificate=kubelet-client.crt --kubelet-client-key=kubelet-client.key \
        --kubelet-preferred-address-types=InternalIP --service-account-key-file=sa.key --service-account-signing-key-file=sa.key \
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.96.0.0/16 \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true &
    until $kubectl get --raw /readyz >/dev/null 2>&1; do sleep 0.5; done
    /root/assets/kube-controller-manager --kubeconfig=$config --leader-elect=false '--controllers=*,bootstrapsigner,tokencleaner' \
        --service-account-private-key-file=sa.key --root-ca-file=ca.crt --cluster-signing-cert-file=ca.crt \
        --cluster-signing-key-file=ca.key --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16 \
        --service-cluster-ip-range=10.96.0.0/16 &
    /root/assets/kube-scheduler --kubeconfig=$config --leader-elect=false &
    wait -n
}

up() {
    certificates >/dev/null 2>&1
    ip address add "$address/24" dev nowhere 2>/dev/null || true
    systemctl reset-failed cluster 2>/dev/null || true
    systemd-run --quiet --unit=cluster --property=TimeoutStopSec=5 /root/cluster.sh serve
    local deadline=$((SECONDS + 120))
    until $kubectl get --raw /readyz >/dev/null 2>&1; do
        ((SECONDS < deadline)) || { journalctl -u cluster --no-pager -n 20; exit 1; } >&2
        sleep 1
    done
    until $kubectl get serviceaccount default >/dev/null 2>&1; do sleep 1; done
    local authority
    authority=$(base64 -w0 "$dir/ca.crt")
    sed "s,AUTHORITY,$authority,; s,SERVER,$server," /root/cluster.yaml | $kubectl apply -f - >/dev/null
    windlass rbac | $kubectl apply -f - >/dev/null
}

case ${1:?up, away, serve, token or pin} in
up) up ;;
away) systemctl stop cluster ;;
serve) serve ;;
token) echo abcdef.fedcba9876543210 ;;
pin) openssl x509 -pubkey -noout -in "$dir/ca.crt" | openssl pkey -pubin -outform der | sha256sum | sed 's/ .*//; s/^/sha256:/' ;;
*) exit 2 ;;
esac
