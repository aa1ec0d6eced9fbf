#!/usr/bin/env bash
# The checks of `make test-boot` that run on the machine itself, one function each. Every line says what was seen; the first
# thing that is not as it should be ends the run with what is needed to understand it.
set -euo pipefail
cd /root
export KUBECONFIG=/etc/windlass/admin.kubeconfig
kubectl=/root/kubectl

ok() { echo "   ok: $*"; }
fail() {
    echo "FAILED: $*"
    echo "--- unit"; systemctl status windlass --no-pager -n 0 || true
    echo "--- pods"; $kubectl get pods -o wide 2>&1 || true
    echo "--- log"; journalctl -b -u windlass --no-pager -n 40 || true
    exit 1
} >&2

# As grep -q, which would end what writes to it before that is done, and so the whole pipe with an error.
has() { grep "$@" >/dev/null; }

# until_true SECONDS WHAT COMMAND… : asks again until the command succeeds.
until_true() {
    local limit=$1 what=$2 deadline=$((SECONDS + $1))
    shift 2
    until "$@" >/tmp/last 2>&1; do
        ((SECONDS > deadline)) && { cat /tmp/last; fail "$what: not within $limit s"; }
        sleep 1
    done
    ok "$what"
}

node_is_ready() { [ "$($kubectl get nodes -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}')" = True ]; }
pods_are_ready() {
    local pods
    pods=$($kubectl get pods -o 'jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}')
    echo "$pods"
    [ "$(grep -c . <<<"$pods")" = 6 ] && ! grep -qv '=True$' <<<"$pods"
}
two_of_web_are_ready() {
    [ "$($kubectl get pods -l app=web -o 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}' | grep -c True)" = 2 ]
}
page() { curl -fsS -m 5 -o /dev/null "$1"; }
containers() { docker ps -q --no-trunc --filter label=io.kubernetes.pod.namespace | sort; }
runs() { $kubectl get pods -o 'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{"\n"}{end}' | sort; }
main_pid() { systemctl show windlass -p MainPID --value; }
services() { curl -fsS -m 5 -o /dev/null "http://$($kubectl get service web -o 'jsonpath={.spec.clusterIP}')/" && page http://127.0.0.1:30080/; }

status_is_ready() { [[ "$(systemctl show windlass -p StatusText --value)" == Ready* ]]; }

booted() {
    [ "$(ps -o comm= 1)" = systemd ] || fail "process 1 is $(ps -o comm= 1)"
    [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] || fail "no cgroup v2: $(stat -fc %T /sys/fs/cgroup)"
    ok "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), kernel $(uname -r), systemd as process 1, cgroup v2"
    until_true 120 "Docker $(docker version -f '{{.Server.Version}}' 2>/dev/null || true) answers" docker info
}

load_images() { for image in images/*.tar; do docker load -qi "$image"; done; }

# The package starts the daemon itself. It is that of an earlier version, which `upgraded` replaces.
installed() {
    load_images
    local began=$SECONDS
    DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i older.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -i"; }
    ok "$(tail -n 1 /tmp/dpkg.log | cut -c1-80)"
    until_true 120 "the unit is active, which says that its parts run" systemctl is-active windlass
    until_true 300 "the node is Ready" node_is_ready
    ok "Ready $((SECONDS - began)) s after the installation began"
    systemctl is-enabled -q windlass || fail "the unit is not enabled"
    [ "$(systemctl show windlass -p Type --value)" = notify ] || fail "not the unit of the package"
    id -g root >/dev/null; getent group windlass >/dev/null || fail "no group windlass"
    [ -s /usr/share/man/man1/windlass-up.1.gz ] || fail "no manual pages"
    bash -n /usr/share/bash-completion/completions/windlass || fail "the completions cannot be read"
    ok "enabled, with group, manual pages and completions"
}

# Every kind of thing that the unit's restrictions could forbid.
pods() {
    $kubectl apply -f pods.yaml >/dev/null
    until_true 300 "all six pods are ready" pods_are_ready
    until_true 60 "the service answers at its address and at port 30080" services
    until_true 30 "the port of the host answers" page http://127.0.0.1:8080/
    [ "$($kubectl exec full -- cat /word/word)" = planted-secret-word ] || fail "the Secret is not in the pod"
    [ "$($kubectl exec full -- cat /all/word /all/name)" = planted-secret-wordfull ] || fail "the projected volume"
    [ "$($kubectl exec full -- cat /setting/only)" = one ] || fail "the sub-path"
    $kubectl exec full -- sh -c 'echo x >/disk/x && stat -c %g:%a /disk' | has '^2000:2' || fail "fsGroup of the emptyDir"
    $kubectl exec full -- sh -c 'grep " /word tmpfs" /proc/mounts' >/dev/null || fail "the Secret is not in memory"
    ok "Secret, projection, sub-path, emptyDirs with fsGroup are in the pod, Secrets in memory"
    $kubectl patch configmap setting -p '{"data":{"setting":"two"}}' >/dev/null
    $kubectl patch secret word -p '{"stringData":{"word":"another-word"}}' >/dev/null
    until_true 30 "a changed Secret reaches the running pod" sh -c "$kubectl exec full -- cat /word/word | grep -qx another-word"
    echo to-and-fro | $kubectl exec -i full -- sh -c 'cat >/disk/y; cat /disk/y' | has -x to-and-fro || fail "exec with input"
    $kubectl logs web-none 2>/dev/null && fail "logs of no pod"
    $kubectl logs full 2>&1 | has '48+0 records' || fail "logs: $($kubectl logs full 2>&1)"
    ok "exec with input, logs"
    $kubectl port-forward pod/port 18080:80 >/tmp/forward.log 2>&1 &
    local forward=$!
    until_true 30 "port-forward" page http://127.0.0.1:18080/
    kill "$forward"
    for table in nat filter; do iptables-save -t $table | has '^:KUBE-' || fail "no chains in $table"; done
}

# What the machine's kernel counts, against loads whose size is known.
figures() {
    local cpu memory deadline=$((SECONDS + 120))
    until_true 120 "metrics.k8s.io knows the pods" $kubectl get pods.metrics.k8s.io busy full
    while :; do
        cpu=$($kubectl get pods.metrics.k8s.io busy -o 'jsonpath={.containers[0].usage.cpu}')
        # In nanocores: a fifth of a core, within a tenth.
        [[ $cpu =~ ^([0-9]+)n$ ]] && ((BASH_REMATCH[1] > 180000000 && BASH_REMATCH[1] < 220000000)) && break
        ((SECONDS > deadline)) && fail "a pod held to 200m is said to use $cpu"
        sleep 5
    done
    memory=$($kubectl get pods.metrics.k8s.io full -o 'jsonpath={.containers[0].usage.memory}')
    [[ $memory =~ ^([0-9]+)Ki$ ]] || fail "memory: $memory"
    ((BASH_REMATCH[1] > 48 * 1024 && BASH_REMATCH[1] < 54 * 1024)) || fail "48 MiB in memory are said to be $memory"
    local pid group kernel
    pid=$(docker inspect -f '{{.State.Pid}}' "$(docker ps -q --filter label=io.kubernetes.pod.name=full --filter label=io.kubernetes.container.name=full)")
    group=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
    kernel=$(($(cat "$group/memory.current") / 1024))
    ok "a pod held to 200m uses $cpu, one with 48 MiB in memory $memory (the kernel says ${kernel}Ki)"
    $kubectl exec full -- sh -c 'dd if=/dev/zero of=/disk/written bs=1M count=20 conv=fsync && rm /disk/written' 2>/dev/null
    until_true 60 "20 MiB that a pod wrote to its volume are counted as written to the disk" written_by_full 20971520
}
written_by_full() {
    curl -fsS -m 5 http://127.0.0.1:10255/metrics/cadvisor | awk -v least="$1" '
        /^container_fs_writes_bytes_total{/ && /container="full"/ { sum += $(NF-1) }
        END { print sum; exit !(sum >= least && sum < 2 * least) }'
}

# Asks the service over and over while something happens, and says how often nobody answered.
watch_traffic() {
    rm -f /tmp/traffic.stop /tmp/traffic
    (
        asked=0 lost=0
        while [ ! -e /tmp/traffic.stop ]; do
            asked=$((asked + 1))
            page http://127.0.0.1:30080/ 2>/dev/null || lost=$((lost + 1))
            sleep 0.2
        done
        echo "$asked $lost" >/tmp/traffic
    ) >/dev/null 2>&1 &
}
traffic_was_kept() {
    local asked lost
    touch /tmp/traffic.stop
    until_true 30 "$1: the watch on traffic has ended" test -s /tmp/traffic
    read -r asked lost </tmp/traffic
    [ "$lost" = 0 ] || fail "$1: $lost of $asked requests had no answer"
    ((asked > 5)) || fail "$1: only $asked requests were made"
    ok "$1: all of $asked requests were answered"
}

# survives WHAT COMMAND… : the daemon is another process afterwards, and pods and traffic did not notice.
survives() {
    local what=$1 before pid
    shift
    before=$(runs)
    pid=$(main_pid)
    watch_traffic
    "$@"
    until_true 240 "$what: another process runs" sh -c "[ \$(systemctl show windlass -p MainPID --value) -gt 1 ] && [ \$(systemctl show windlass -p MainPID --value) != $pid ]"
    until_true 240 "$what: the node is active again" systemctl is-active windlass
    until_true 120 "$what: the node is Ready" node_is_ready
    sleep 3
    traffic_was_kept "$what"
    [ "$(runs)" = "$before" ] || fail "$what: pods changed: before $before, now $(runs)"
    ok "$what: no container was touched"
}

restarts() {
    survives "systemctl restart" systemctl restart windlass
    survives "kill -9" sh -c "kill -9 $(main_pid)"
}

# systemd owns the slices of pods: after a daemon-reload it must not write its own values over the limits.
limits_of() {
    local pid dir
    pid=$(docker inspect -f '{{.State.Pid}}' "$(docker ps -q --filter label=io.kubernetes.pod.name="$1" --filter label=io.kubernetes.container.name="$1")")
    dir=/sys/fs/cgroup$(dirname "$(sed -n 's/^0:://p' "/proc/$pid/cgroup")")
    [[ $dir == */kubepods.slice/*.slice ]] || fail "the pod $1 is in no slice: $dir"
    for file in memory.max cpu.weight cpu.max pids.max; do echo "$file $(cat "$dir/$file")"; done
    for file in memory.max cpu.weight; do echo "kubepods.slice $file $(cat "/sys/fs/cgroup/kubepods.slice/$file")"; done
}
reloads_units() {
    local before
    before=$(limits_of busy)
    has -x 'memory.max 67108864' <<<"$before" && has -x 'cpu.max 20000 100000' <<<"$before" || fail "the pod is not held to 64Mi and 200m: $before"
    systemctl daemon-reload
    sleep 3
    [ "$(limits_of busy)" = "$before" ] || fail "systemctl daemon-reload: limits of a pod changed: before $before, now $(limits_of busy)"
    ok "systemctl daemon-reload: a pod is held to its limits: $(xargs <<<"$before")"
}

reloads() {
    local pid
    pid=$(main_pid)
    systemctl reload windlass || fail "systemctl reload"
    sleep 5
    [ "$(main_pid)" = "$pid" ] && systemctl is-active -q windlass || fail "a reload ended the process"
    until_true 60 "systemctl reload: the same process is Ready" node_is_ready
}

hangs() {
    survives "a process that hangs (SIGSTOP)" sh -c "kill -STOP $(main_pid)"
    journalctl -b -u windlass --no-pager | has -i 'watchdog timeout' || fail "nobody says that the watchdog ended it"
    ok "the journal says that the watchdog ended it"
}

version() { dpkg-query -W -f '${Version}' windlass; }

# An interactive command loses its client in an upgrade, not its life.
upgraded() {
    $kubectl exec full -- rm -f /disk/through
    $kubectl exec full -- sh -c 'sleep 15 && echo ended >/disk/through' >/tmp/through 2>&1 &
    sleep 2
    local older
    older=$(version)
    survives "an upgrade" dpkg --force-confold -i windlass.deb
    [ "$(version)" != "$older" ] || fail "version $older is there as before"
    ok "version $older is $(version) now"
    until_true 60 "a command in a pod lives through an upgrade" $kubectl exec full -- grep -qx ended /disk/through
}

# Pods are terminated before a shutdown: requested here, checked after the next boot.
asks_for_time() {
    printf 'apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\nshutdownGracePeriod: "40s"\nshutdownGracePeriodCriticalPods: "10s"\n' >/etc/windlass/config.yaml
    windlass config check /etc/windlass/config.yaml >/dev/null || fail "the configuration"
    systemctl restart windlass
    until_true 240 "the node is Ready with time for its end" node_is_ready
    until_true 60 "logind waits for it" sh -c 'busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager ListInhibitors | grep -qi windlass'
    rm -f /var/tmp/seen/told
    runs >/root/runs.before
}

came_back() {
    until_true 300 "after the reboot the unit is active" systemctl is-active windlass
    grep -qx told /var/tmp/seen/told || fail "the pod was not terminated before the shutdown: $(cat /var/tmp/seen/told 2>&1)"
    grep -qx done /var/tmp/seen/told || fail "the pod had no time to end: $(cat /var/tmp/seen/told)"
    ok "the pod was terminated before the shutdown and could finish"
    journalctl -b -1 -u windlass --no-pager | tail -n 5 | sed 's/^/       /'
    # Those that ended with the machine are still listed, and what nobody replicates stays ended.
    until_true 300 "the replicated pods are back" two_of_web_are_ready
    until_true 60 "the service answers again" services
    local name uid rest ended
    while read -r name uid rest; do
        ended=$($kubectl get pod "$name" -o 'jsonpath={.metadata.uid} {.status.phase} {.status.reason}')
        [ "$ended" = "$uid Failed Terminated" ] || fail "the pod $name, which the shutdown has ended, is $ended; it was $uid"
    done </root/runs.before
    ok "what ran before the shutdown has ended for good: $(wc -l </root/runs.before) pods"
    $kubectl delete pods --field-selector status.phase=Failed >/dev/null
    $kubectl apply -f pods.yaml >/dev/null
    until_true 300 "all six pods are ready again" pods_are_ready
}

quiet_journal() {
    local bad
    # Errors by systemd's own count of priority, and by our own word in the line.
    bad=$(journalctl -u windlass --no-pager -o cat | grep -E ' ERROR |panicked' || true)
    [ -z "$bad" ] || fail "errors in the log: $bad"
    bad=$(journalctl -p err --no-pager -o short -u windlass | grep -v -- '-- ' | grep -viE 'watchdog timeout|code=killed|code=dumped' || true)
    [ -z "$bad" ] || fail "errors of the unit: $bad"
    bad=$(journalctl --no-pager -o cat -u windlass | grep -E 'planted-secret-word|another-word' || true)
    [ -z "$bad" ] || fail "a Secret is in the log: $bad"
    bad=$(systemctl --failed --no-legend --plain | awk '{print $1}' | xargs)
    [ -z "$bad" ] || fail "failed units: $bad"
    ok "no errors and no Secret in the journal, no failed unit"
}

# What is there of a node that was ended, one line each. Docker is asked only if it runs.
remains() {
    local state group
    state=$(systemctl show windlass -p ActiveState --value)
    [ "$state" = inactive ] || echo "the unit is $state"
    ! pgrep -x windlass >/dev/null || echo "processes $(pgrep -x windlass | xargs)"
    [ ! -e /run/windlass/windlass.lock ] || flock -n /run/windlass/windlass.lock true || echo "a lock is held"
    ! systemctl is-active -q docker || [ -z "$(all_containers)" ] || echo "containers $(all_containers | xargs)"
    for family in iptables ip6tables; do
        ! $family-save | has 'KUBE\|WINDLASS' || echo "rules of $family: $($family-save | grep -c 'KUBE\|WINDLASS')"
    done
    ! ip -o link | has 'windlass\|veth[0-9a-f]*@if.*link-netns' || echo "interfaces $(ip -o link | grep -c 'windlass\|veth')"
    [ -z "$(ip route show | grep '10\.244\.')" ] || echo "routes $(ip route show | grep '10\.244\.' | xargs)"
    [ -z "$(compgen -G '/run/netns/*')" ] || echo "network namespaces $(echo /run/netns/*)"
    ! has_mounts || echo "mounts $(mounts | cut -d' ' -f5 | xargs)"
    for group in $(find /sys/fs/cgroup -type d -name '*kubepods*' -o -type d -name 'pod????????-????-????-????-????????????'); do
        [ -z "$(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null)" ] || echo "processes in $group"
    done
    ! busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager ListInhibitors 2>/dev/null | has -i windlass ||
        echo "logind waits for it"
}
# All of Docker's that are pods', those that have ended, too.
all_containers() { docker ps -aq --no-trunc --filter label=io.kubernetes.pod.namespace; }

# What is mounted of a node: volumes, Secrets in memory among them, and parts of them.
mounts() { grep ' /var/lib/windlass/\| /run/windlass/' /proc/self/mountinfo; }
has_mounts() { mounts >/dev/null; }

# What a verb has ended stays ended, ten seconds later, too: the unit starts what was only signalled again after two.
stays_down() {
    local left
    sleep 10
    left=$(remains | grep -v "${2:-^$}" | grep -vxFf "${3:-/dev/null}" || true)
    [ -z "$left" ] || fail "ten seconds after $1: $left"
    ok "ten seconds after $1 nothing runs"
}
# As above, where Docker is stopped: what it keeps is still there, and what it had no time to end.
nothing_starts() { stays_down "$1" '^mounts' /tmp/outlived; }
purged_node() {
    [ ! -e /var/lib/windlass/windlass-data ] || fail "there is a new cluster in the directory that was removed"
    ! systemctl is-enabled -q windlass || fail "the unit begins a new cluster at the next boot"
}
# As an administrator stops it, and without the socket, as before its first start. Docker ends its containers, but for no longer
# than 15 s, which are over soon on a slow machine.
stop_docker() {
    systemctl stop docker.socket docker
    rm -f /run/docker.sock
    remains | grep '^processes in' >/tmp/outlived || true
    [ ! -s /tmp/outlived ] || echo "       Docker left behind: $(xargs </tmp/outlived)"
}
docker_stays_stopped() {
    ! systemctl is-active -q docker && ! systemctl is-active -q docker.socket || fail "$1 has started Docker, which was stopped"
    ok "$1 leaves Docker stopped"
}
start_docker() {
    systemctl reset-failed docker.service docker.socket 2>/dev/null || true
    systemctl start docker
}
# succeeds|names WHAT COMMAND… : the command succeeds, or it fails and says WHAT; neither may hang.
succeeds() {
    local began=$SECONDS
    timeout 120 "$@" >/tmp/verb 2>&1 || fail "$*: code $?: $(cat /tmp/verb)"
    ok "$* ($((SECONDS - began)) s): $(tail -n 1 /tmp/verb)"
}
names() {
    local what=$1 began=$SECONDS code=0
    shift
    timeout 120 "$@" >/tmp/verb 2>&1 || code=$?
    [ $code != 0 ] && [ $code != 124 ] || fail "$*: code $code: $(cat /tmp/verb)"
    has -i "$what" /tmp/verb || fail "$* does not say $what: $(cat /tmp/verb)"
    ok "$* ($((SECONDS - began)) s) is refused:"
    sed 's/^/       /' /tmp/verb
}
upgrade() {
    local began=$SECONDS
    timeout 120 dpkg --force-confold -i windlass.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -i: code $?"; }
    ok "dpkg -i took $((SECONDS - began)) s"
}
begins_anew() {
    systemctl enable -q --now windlass || fail "systemctl enable --now"
    until_true 300 "a new cluster is Ready" node_is_ready
    $kubectl apply -f pods.yaml >/dev/null
    until_true 300 "all six pods are ready" pods_are_ready
    until_true 60 "the service answers" services
}

# Secrets are in memory as long as their pods are.
secrets_are_mounted() { mounts | grep 'kubernetes.io~secret.* tmpfs ' >/dev/null; }
secret_is_in_the_pod() { $kubectl exec full -- grep -q . /word/word; }

verbs() {
    until_true 60 "a Secret is in memory" secrets_are_mounted
    succeeds windlass down
    stays_down "windlass down"
    succeeds windlass down
    stays_down "windlass down of what does not run"
    systemctl start windlass
    until_true 300 "after a start the node is Ready" node_is_ready
    # At once, but for the time that a datagram takes.
    until_true 2 "and the unit says so" status_is_ready
    until_true 300 "after a start the pods are back" two_of_web_are_ready
    until_true 300 "after a start all six pods are ready" pods_are_ready
    secret_is_in_the_pod || fail "the Secret is not in the pod that was started again"

    # Another one with the same directories is not started over and over.
    ! NOTIFY_SOCKET=/run/nobody windlass up || fail "a second instance has begun"

    succeeds windlass down --purge
    stays_down "windlass down --purge"
    purged_node
    succeeds windlass down --purge
    begins_anew
}

# Each verb while Docker is stopped: what it could not remove is named, and the same command continues when Docker is back.
verbs_without_docker() {
    stop_docker
    until_true 60 "without Docker the node is not Ready" sh -c "! [ \"\$($kubectl get nodes -o 'jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}')\" = True ]"
    names docker windlass down
    nothing_starts "windlass down without Docker"
    start_docker
    succeeds windlass down
    stays_down "windlass down with Docker back"
    systemctl start windlass
    until_true 300 "the node is Ready" node_is_ready
    until_true 300 "the pods are back" two_of_web_are_ready

    stop_docker
    systemctl restart windlass
    until_true 60 "without Docker the unit is active" systemctl is-active windlass
    sleep 5
    [[ "$(systemctl show windlass -p StatusText --value)" == *docker.sock* ]] || fail "without Docker the unit says $(systemctl show windlass -p StatusText --value)"
    docker_stays_stopped "a restart of the unit"
    ok "status: $(systemctl show windlass -p StatusText --value)"
    names docker windlass down --purge
    nothing_starts "windlass down --purge without Docker"
    ! systemctl is-enabled -q windlass || fail "the unit begins in a directory whose removal has begun"
    start_docker
    succeeds windlass down --purge
    stays_down "windlass down --purge with Docker back"
    purged_node
    begins_anew
}

# The packages' verbs wait for nobody, least of all for a Docker that is stopped.
packages_without_docker() {
    stop_docker
    upgrade
    until_true 60 "without Docker the unit is active" systemctl is-active windlass
    docker_stays_stopped "an upgrade"
    ok "status: $(systemctl show windlass -p StatusText --value)"
    dpkg -r windlass >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -r"; }
    sleep 10
    ! pgrep -x windlass >/dev/null || fail "ten seconds after a removal: processes $(pgrep -x windlass | xargs)"
    ok "ten seconds after a removal no process runs"
    upgrade
    start_docker
    until_true 300 "installed again, with Docker back, the node is Ready" node_is_ready
    until_true 300 "and the pods are back" two_of_web_are_ready
}

# A node of a real cluster, by its own kubectl.
joins() {
    systemctl is-active -q cluster || ./cluster.sh up || fail "no control plane"
    export KUBECONFIG=/root/cluster.kubeconfig
    $kubectl delete node --all >/dev/null
    succeeds windlass join 192.0.2.11:6443 --token "$(./cluster.sh token)" --discovery-token-ca-cert-hash "$(./cluster.sh pin)" --timeout 90s
    until_true 120 "the node of the cluster is Ready" node_is_ready
    systemctl is-enabled -q windlass || fail "the unit is not enabled"
    [[ "$(tr '\0' ' ' <"/proc/$(main_pid)/cmdline")" == *'windlass agent'* ]] || fail "the unit runs no agent"
    $kubectl apply -f pods.yaml >/dev/null
    until_true 300 "all six pods are ready" pods_are_ready
    until_true 60 "the service answers" services
}
joined() {
    names 'cluster of its own\|runs on this machine' windlass join 192.0.2.11:6443 --token "$(./cluster.sh token)" --discovery-token-unsafe-skip-ca-verification --timeout 20s
    succeeds windlass down --purge
    joins
    systemctl restart windlass
    until_true 120 "after a restart the node is Ready" node_is_ready
    succeeds windlass down
    stays_down "windlass down of a node of a cluster"
    systemctl start windlass
    until_true 120 "after a start the pods are back" two_of_web_are_ready
    succeeds windlass leave --yes --kubeconfig /root/cluster.kubeconfig
    stays_down "windlass leave"
    is_no_member
    [ -z "$($kubectl get nodes -o name)" ] || fail "the Node is left: $($kubectl get nodes)"
    joins
}
is_no_member() {
    [ ! -e /etc/windlass/windlass.env ] || fail "the unit still runs a node of the cluster"
    ! systemctl is-enabled -q windlass || fail "the unit is started at the next boot"
    ! grep -rqs 'BEGIN' /var/lib/windlass || fail "keys are left: $(grep -rls BEGIN /var/lib/windlass)"
}

# Each verb of a node of a cluster whose API is away.
verbs_without_api() {
    export KUBECONFIG=/root/cluster.kubeconfig
    ./cluster.sh away
    succeeds systemctl restart windlass
    until_true 60 "without the API the unit is active" systemctl is-active windlass
    ok "status: $(systemctl show windlass -p StatusText --value)"
    succeeds windlass down
    stays_down "windlass down without the API"
    succeeds systemctl start windlass
    succeeds windlass leave --yes
    stays_down "windlass leave without the API"
    is_no_member
    joins
    ./cluster.sh away
    names 192.0.2.11 windlass leave --yes --kubeconfig /root/cluster.kubeconfig
    stays_down "windlass leave that could not delete the Node"
    ./cluster.sh up
    succeeds windlass leave --yes --kubeconfig /root/cluster.kubeconfig
    is_no_member
    [ -z "$($kubectl get nodes -o name)" ] || fail "the Node is left: $($kubectl get nodes)"
    names 192.0.2.99 windlass join 192.0.2.99:6443 --token "$(./cluster.sh token)" --discovery-token-unsafe-skip-ca-verification --timeout 5s
    stays_down "a join without an API"
    is_no_member
    joins
    stop_docker
    names docker windlass leave --yes
    nothing_starts "windlass leave without Docker"
    ! systemctl is-enabled -q windlass || fail "at the next boot the machine is a node again"
    start_docker
    succeeds windlass leave --yes
    stays_down "windlass leave with Docker back"
    is_no_member
    joins
    ./cluster.sh away
    succeeds windlass down --purge
    stays_down "windlass down --purge without the API"
    purged_node
    is_no_member
    joins
}

# The packages' verbs on a node of a cluster whose API is away; its pods run on.
packages_without_api() {
    export KUBECONFIG=/root/cluster.kubeconfig
    ./cluster.sh away
    local before
    before=$(containers)
    upgrade
    until_true 60 "without the API the unit is active" systemctl is-active windlass
    sleep 10
    [ "$(containers)" = "$before" ] || fail "an upgrade without the API touched pods"
    dpkg -r windlass >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -r"; }
    sleep 10
    ! pgrep -x windlass >/dev/null || fail "ten seconds after a removal: processes $(pgrep -x windlass | xargs)"
    [ "$(containers)" = "$before" ] || fail "a removal without the API touched pods"
    upgrade
    until_true 60 "installed again the unit is active" systemctl is-active windlass
    ./cluster.sh up
    until_true 120 "with the API back the node is Ready" node_is_ready
    [ "$(containers)" = "$before" ] || fail "pods changed: before $before, now $(containers)"
    ok "through all of it no container was touched"
}

# Back to a cluster of its own.
left() {
    succeeds windlass leave --yes --purge
    stays_down "windlass leave --purge"
    is_no_member
    ./cluster.sh away
    begins_anew
}

removed() {
    local before
    before=$(containers)
    [ -n "$before" ] || fail "nothing runs"
    dpkg -r windlass >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -r"; }
    [ "$(containers)" = "$before" ] || fail "a removal touched pods"
    [ -d /var/lib/windlass ] && [ ! -e /usr/bin/windlass ] || fail "data is gone, or the program is not"
    page http://127.0.0.1:30080/ || fail "after a removal the service does not answer"
    ok "a removal leaves pods, data and traffic"
}

purged() {
    dpkg -P windlass >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -P"; }
    local left=()
    [ -z "$(containers)" ] || left+=("containers $(containers)")
    for path in /var/lib/windlass /var/lib/windlass-removed /etc/windlass /run/windlass /usr/share/doc/windlass \
        /etc/systemd/logind.conf.d/99-windlass.conf /var/log/pods /var/log/containers; do
        [ ! -e "$path" ] || left+=("$path ($(find "$path" | head -n 5 | xargs))")
    done
    ! iptables-save | has KUBE || left+=("rules: $(iptables-save | grep -c KUBE)")
    ! ip -o link | has 'veth\|windlass' || left+=("interfaces: $(ip -o link | xargs)")
    ! getent group windlass >/dev/null || left+=("the group")
    ! grep -q ' /var/lib/windlass' /proc/self/mountinfo || left+=("mounts")
    ! compgen -G '/run/systemd/system.control/kubepods*' >/dev/null || left+=("limits of slices")
    ((${#left[@]} == 0)) || { cat /tmp/dpkg.log; fail "a purge leaves: ${left[*]}"; }
    ok "a purge leaves nothing"
}

# The RPM package, by rpm itself, which Debian has for such tests alone: it starts nothing, an upgrade leaves pods and traffic
# alone, a removal ends the daemon, and after a purge nothing is left.
rpm_of() {
    rpm --force-debian --nodeps "$@" >/tmp/rpm.log 2>&1 || { cat /tmp/rpm.log; fail "rpm $*"; }
    ok "rpm $*"
}
by_rpm() {
    local before
    load_images
    rpm_of -i windlass.rpm
    sleep 3
    ! pgrep -x windlass >/dev/null || fail "an installation starts the daemon"
    getent group windlass >/dev/null || fail "no group windlass"
    begins_anew
    survives "an upgrade by rpm" rpm_of -U next.rpm
    [ "$(rpm -q --qf '%{VERSION}' windlass)" = 99.0 ] || fail "rpm has $(rpm -q windlass)"
    stop_docker
    rpm_of -U --oldpackage windlass.rpm
    until_true 60 "without Docker the unit is active" systemctl is-active windlass
    docker_stays_stopped "a downgrade by rpm"
    start_docker
    until_true 300 "with Docker back the node is Ready" node_is_ready
    # All of them: what is still being started is another container afterwards.
    until_true 300 "and all six pods are back" pods_are_ready
    before=$(containers)
    rpm_of -e windlass
    sleep 10
    ! pgrep -x windlass >/dev/null || fail "ten seconds after a removal: processes $(pgrep -x windlass | xargs)"
    [ "$(containers)" = "$before" ] || fail "a removal touched pods"
    rpm_of -i windlass.rpm
    succeeds windlass down --purge
    rpm_of -e windlass
    stays_down "windlass down --purge and a removal by rpm"
    [ ! -e /var/lib/windlass ] || fail "data is left: $(find /var/lib/windlass | head -n 5 | xargs)"
}

"$@"
