//! Flushes the nat table while endpoints change ten times a second: the proxy restores all rules although it writes
//! other rules all the time.

use std::time::Duration;

use windlass_tests::{Daemon, Testbed, eventually};

use super::kubectl;

/// A service without clients: only its endpoints matter.
const CHANGING: &str = "apiVersion: v1
kind: Service
metadata: {name: changing}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: changing-1, labels: {kubernetes.io/service-name: changing}}
addressType: IPv4
ports: [{port: 80, protocol: TCP}]
endpoints: [{addresses: [198.51.100.1]}]
";
/// The address of `kubectl proxy`, so that a change needs no process.
const PORT: u16 = 18_007;
const CHANGES: u32 = 100;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Flushes in the middle of ten seconds of changes and waits for the rules, which return before the changes end or soon
/// after.
pub(super) fn nat_table_flushed(testbed: &Testbed) {
    let kubectl = kubectl(testbed);
    if !kubectl.output(&["apply", "-f", "-"], CHANGING).ok {
        // The node still handles an earlier fault.
        return;
    }
    let mut command = kubectl.command();
    command.args(["proxy", &format!("--port={PORT}")]);
    let log = testbed.dir().join("kubectl-proxy.log");
    let Ok(_proxy) = Daemon::start("kubectl proxy", &mut command, &log) else { return };
    let path = "apis/discovery.k8s.io/v1/namespaces/default/endpointslices/changing-1";
    let change = format!(
        "i=0; while [ $i -lt {CHANGES} ]; do i=$((i+1)); \
         curl -s --max-time 2 -o /dev/null -X PATCH -H 'Content-Type: application/merge-patch+json' \
         --data '{{\"endpoints\":[{{\"addresses\":[\"198.51.100.'$i'\"]}}]}}' http://127.0.0.1:{PORT}/{path}; \
         sleep 0.1; done"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| testbed.try_sh(&change));
        std::thread::sleep(Duration::from_secs(3));
        testbed.sh("iptables -w 10 -t nat -F");
        eventually(DEFAULT_TIMEOUT, "service rules are back after a flush of the nat table", || {
            let whole = "iptables-save -t nat | grep -e '-A PREROUTING .*-j KUBE-SERVICES' && \
                         iptables-save -t nat | grep -e '-A KUBE-SERVICES .*-j KUBE-NODEPORTS'";
            testbed.try_sh(whole).map(drop)
        });
    });
    let _ = kubectl.output(&["delete", "service/changing", "endpointslice/changing-1", "--wait=false"], "");
}
