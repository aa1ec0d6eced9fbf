//! A ReplicationController behind a Service: what the README shows first.

use std::collections::BTreeSet;

use windlass_tests::{DEFAULT_TIMEOUT, Daemon, LentNode, Testbed, eventually};

use crate::{WEB, container_id, name_of};

/// A server outside that responds with the client's address.
const TELLS_SOURCE: &str = r#"
import socketserver
class Tell(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.client_address[0].encode())
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("198.18.0.2", 9090), Tell).serve_forever()
"#;

/// Requests a page until every pod has responded.
fn all_answer(names: &BTreeSet<String>, mut ask: impl FnMut() -> anyhow::Result<String>) {
    let mut seen = BTreeSet::new();
    eventually(DEFAULT_TIMEOUT, "every pod answers", || {
        for _ in 0..20 {
            seen.insert(ask()?.trim().to_owned());
        }
        anyhow::ensure!(seen.is_superset(names), "answers came from {seen:?}, not from all of {names:?}");
        Ok(())
    });
    assert_eq!(&seen, names, "somebody else answered");
}

/// Requests a page until the connection is rejected, not timed out.
fn refuses(what: &str, mut ask: impl FnMut() -> anyhow::Result<String>) {
    eventually(DEFAULT_TIMEOUT, &format!("{what} refuses"), || {
        let error = format!("{:#}", ask().err().ok_or_else(|| anyhow::anyhow!("it still answers"))?);
        anyhow::ensure!(error.contains("exit status: 7"), "{error}");
        Ok(())
    });
}

/// Requests a page from inside a container. Not with wget: the static one crashes when it resolves a name.
pub(crate) fn ask_from(testbed: &Testbed, container: &str, address: &str, path: &str) -> anyhow::Result<String> {
    let host = format!("unix://{}", testbed.docker_socket().display());
    let line = format!("printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80");
    let answer = windlass_tests::try_run("docker", &["-H", &host, "exec", container, "sh", "-c", &line])?;
    anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn a_service_answers_from_every_pod_wherever_it_is_asked() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    kubectl.apply(WEB);
    let pods = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    let names: BTreeSet<String> = pods.iter().map(name_of).collect();
    let service = kubectl.json(&["service", "web"]).unwrap();
    let cluster_ip = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(cluster_ip.starts_with("10.96."), "{cluster_ip}");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 30080);

    // From the node: the cluster address, and the node port at the node's and at the loopback address.
    for target in [format!("{cluster_ip}:80"), "198.18.0.1:30080".to_owned(), "127.0.0.1:30080".to_owned()] {
        all_answer(&names, || testbed.try_sh(&format!("curl -fsS --max-time 5 http://{target}/")));
    }
    // From another machine, by the node's address.
    all_answer(&names, || testbed.try_sh_outside("curl -fsS --max-time 5 http://198.18.0.1:30080/"));
    // From inside each pod, so that each also reaches itself through its service (hairpin).
    for pod in &pods {
        let id = container_id(pod);
        all_answer(&names, || ask_from(testbed, &id, &cluster_ip, "/"));
    }
    // Pods reach each other by address, without source NAT.
    let addresses: Vec<&str> = pods.iter().map(|p| p["status"]["podIP"].as_str().unwrap()).collect();
    let seen = ask_from(testbed, &container_id(&pods[0]), addresses[1], "/source").unwrap();
    assert_eq!(seen.trim(), addresses[0]);
    // Traffic from a pod to outside of the cluster's range is masqueraded.
    let mut command = testbed.command_outside("python3");
    command.args(["-c", TELLS_SOURCE]);
    let _listener = Daemon::start("a listener outside", &mut command, &testbed.dir().join("outside.log")).unwrap();
    let outside = eventually(DEFAULT_TIMEOUT, "the pod reaches the outside", || {
        let host = format!("unix://{}", testbed.docker_socket().display());
        let line = "nc -w 2 198.18.0.2 9090 </dev/null";
        windlass_tests::try_run("docker", &["-H", &host, "exec", &container_id(&pods[0]), "sh", "-c", line])
    });
    assert!(outside.contains("198.18.0.1"), "the outside saw: {outside}");

    // The rules have the chain names of upstream's proxy.
    let rules = testbed.sh("iptables-save -t nat");
    for chain in [
        ":KUBE-SERVICES ",
        ":KUBE-NODEPORTS ",
        ":KUBE-POSTROUTING ",
        ":KUBE-MARK-MASQ ",
        ":KUBE-SVC-",
        ":KUBE-EXT-",
        ":KUBE-SEP-",
    ] {
        assert!(rules.contains(chain), "{chain} is missing in\n{rules}");
    }
    assert!(
        rules.contains("-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
        "{rules}"
    );
    assert!(rules.contains("--comment \"default/web:http cluster IP\""), "{rules}");
    assert!(rules.contains("-m statistic --mode random --probability 0.5"), "{rules}");

    // A pod that is deleted is replaced, and the service follows.
    let victim = names.first().unwrap().clone();
    let _ = kubectl.run(&["delete", "pod", &victim, "--wait=false"]);
    let pods = eventually(DEFAULT_TIMEOUT, "the pod is replaced", || {
        let pods = kubectl.ready_pods("app=web", 2)?;
        anyhow::ensure!(pods.iter().all(|p| name_of(p) != victim), "the deleted pod is still there");
        Ok(pods)
    });
    let names: BTreeSet<String> = pods.iter().map(name_of).collect();
    all_answer(&names, || testbed.try_sh(&format!("curl -fsS --max-time 5 http://{cluster_ip}/")));

    // As a load balancer it has the node's address, from other machines too, but not a port that another one has.
    let balanced = r#"{"spec": {"type": "LoadBalancer", "ports": [{"name": "http", "port": 8090, "targetPort": 80}]}}"#;
    let _ = kubectl.run(&["patch", "service", "web", "--type=merge", "-p", balanced]);
    let _ = kubectl.run(&["create", "service", "loadbalancer", "late", "--tcp=8090:80"]);
    eventually(DEFAULT_TIMEOUT, "the service has the node's address", || {
        let service = kubectl.json(&["service", "web"])?;
        anyhow::ensure!(service["status"]["loadBalancer"]["ingress"][0]["ip"] == "198.18.0.1", "{service}");
        Ok(())
    });
    all_answer(&names, || testbed.try_sh_outside("curl -fsS --max-time 5 http://198.18.0.1:8090/"));
    all_answer(&names, || testbed.try_sh("curl -fsS --max-time 5 http://198.18.0.1:8090/"));
    eventually(DEFAULT_TIMEOUT, "the later service is told that the port is taken", || {
        let events = kubectl.try_run(&["get", "events", "--field-selector", "reason=SyncLoadBalancerFailed"])?;
        anyhow::ensure!(
            events.contains("8090") && events.contains("already used by load balancer service"),
            "{events}"
        );
        Ok(())
    });
    let late = kubectl.json(&["service", "late"]).unwrap();
    assert!(late["status"]["loadBalancer"]["ingress"].is_null(), "{late}");
    let _ = kubectl.run(&["patch", "service", "web", "-p", r#"{"spec": {"type": "ClusterIP"}}"#]);
    eventually(DEFAULT_TIMEOUT, "the port is free for the later one", || {
        let late = kubectl.json(&["service", "late"])?;
        anyhow::ensure!(late["status"]["loadBalancer"]["ingress"][0]["ip"] == "198.18.0.1", "{late}");
        Ok(())
    });
    refuses("the service without endpoints", || {
        testbed.try_sh_outside("curl -sS --max-time 5 http://198.18.0.1:8090/ 2>&1")
    });

    // Without endpoints the service rejects connections at once.
    let _ = kubectl.run(&["scale", "rc", "web", "--replicas=0"]);
    refuses("the service", || testbed.try_sh(&format!("curl -sS --max-time 5 http://{cluster_ip}/ 2>&1")));
}
