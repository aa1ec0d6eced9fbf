//! The cluster's DNS, as pods, the host and others see it. All on one node.

use std::{
    fs,
    path::{Path, PathBuf},
};

use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, cluster::Api, eventually};

use crate::shared_dir::{self, is_ready, wait_for};

const DNS: &str = "10.96.0.10";
/// Where the server itself listens.
const SOCKET: (&str, u16) = ("198.18.0.1", 10053);
/// Two name servers outside.
const RESOLVERS: [&str; 2] = ["198.18.0.2", "198.18.0.3"];

const OBJECTS: &str = r"
apiVersion: v1
kind: Service
metadata: {name: nginx}
spec: {clusterIP: None, selector: {app: nginx}, ports: [{name: web, port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: nginx
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: nginx}}
  template:
    metadata: {labels: {app: nginx}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: 'windlass/nginx:1', ports: [{containerPort: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {clusterIP: 10.96.0.77, selector: {app: nginx}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: www.test}
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {type: ExternalName, externalName: front.default.svc.cluster.local}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: 'windlass/curl:1', command: [sleep, '100000']}]
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  terminationGracePeriodSeconds: 0
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  containers: [{name: main, image: 'windlass/curl:1', command: [sleep, '100000']}]
";

/// The client.
#[derive(Debug, Clone, Copy)]
enum From {
    /// The network namespace of the pod `client`.
    Pod,
    Host,
    Outside,
}

struct Bed<'t> {
    testbed: &'t Testbed,
    kubectl: Kubectl<'t>,
    script: PathBuf,
    /// The network namespace of the pod `client`.
    pod: PathBuf,
}

impl Bed<'_> {
    /// The output of `ask.py`.
    fn try_ask(&self, from: From, (server, port): (&str, u16), transport: &str, text: &str) -> anyhow::Result<String> {
        let line = format!("python3 {} {server} {port} {transport} {text}", self.script.display());
        match from {
            From::Pod => self.testbed.try_sh(&format!("nsenter --net={} {line}", self.pod.display())),
            From::Host => self.testbed.try_sh(&line),
            From::Outside => self.testbed.try_sh_outside(&line),
        }
    }

    #[track_caller]
    fn ask(&self, text: &str) -> Vec<String> {
        let answer = self.try_ask(From::Pod, (DNS, 53), "udp", text);
        answer.unwrap_or_else(|e| panic!("{text}: {e:#}")).lines().map(str::to_owned).collect()
    }

    /// Asks until the answer is this.
    fn becomes(&self, text: &str, expected: &[&str]) {
        eventually(DEFAULT_TIMEOUT, text, || {
            let found = self.ask(text);
            anyhow::ensure!(found == expected, "{found:?}");
            Ok(())
        });
    }

    fn exec(&self, pod: &str, line: &str) -> anyhow::Result<String> {
        self.kubectl.try_run(&["exec", pod, "--", "sh", "-c", line])
    }
}

fn resolver(testbed: &Testbed, address: &str) -> (Daemon, PathBuf) {
    let (script, log) = (testbed.dir().join("resolver.py"), testbed.dir().join(format!("questions-{address}")));
    fs::write(&script, include_str!("dns/resolver.py")).expect("a file can be written");
    let mut command = testbed.command_outside("python3");
    command.arg(&script).arg(address).arg(&log);
    (Daemon::start("a name server", &mut command, &testbed.dir().join("resolver.log")).expect("python3 starts"), log)
}

/// How often a name server was asked a question.
fn asked(log: &Path, question: &str) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.starts_with(question)).count()
}

#[test]
fn names_of_the_cluster_and_beyond() {
    let testbed = Testbed::new();
    testbed.load("curl");
    if testbed.api() == Api::Cluster {
        // There it is an add-on.
        return;
    }
    let _ = testbed.try_sh_outside("ip address add 198.18.0.3/24 dev eth0").unwrap();
    let (_first, questions) = resolver(&testbed, RESOLVERS[0]);
    let (_second, others) = resolver(&testbed, RESOLVERS[1]);
    // Its own address is skipped, as is a server that does not answer.
    let resolv_conf = testbed.dir().join("resolv.conf");
    let servers = format!("search corp.test\nnameserver {DNS}\nnameserver 198.18.0.1\nnameserver {}\n", RESOLVERS[0]);
    fs::write(&resolv_conf, servers).unwrap();
    let mut windlass = testbed.windlass().with(&["--resolv-conf", &resolv_conf.to_string_lossy()]);
    let kubectl = windlass.up();
    kubectl.apply(OBJECTS);
    for pod in ["web-0", "web-1", "client", "host"] {
        wait_for(&kubectl, pod, "is ready", is_ready);
    }
    let script = testbed.dir().join("ask.py");
    fs::write(&script, include_str!("dns/ask.py")).unwrap();
    let client = kubectl.json(&["pod", "client"]).unwrap();
    let pid = testbed.docker(&["inspect", "-f", "{{.State.Pid}}", &crate::container_id(&client)]);
    let pod = PathBuf::from(format!("/proc/{}/ns/net", pid.trim()));
    let bed = Bed { testbed: &testbed, kubectl, script, pod };
    let ip = |pod: &str| bed.kubectl.json(&["pod", pod]).unwrap()["status"]["podIP"].as_str().unwrap().to_owned();
    let (web0, web1) = (ip("web-0"), ip("web-1"));

    pods_are_told_of_it(&bed);
    names_of_objects(&bed, &web0, &web1);
    names_of_others(&bed, &questions);
    its_name_servers_follow_the_file(&bed, &resolv_conf, &others);
    who_is_answered(&bed);

    windlass.kill();
    let _ = windlass.up();
    assert_eq!(bed.ask("front.default.svc.cluster.local A")[1..], ["front.default.svc.cluster.local A 10.96.0.77"]);
    assert_eq!(bed.ask("web-0.nginx.default.svc.cluster.local A")[0], "NOERROR aa ra");
    let log = fs::read_to_string(testbed.dir().join("windlass.log")).unwrap_or_default();
    assert!(log.contains("names the cluster's own DNS"), "{log}");

    // Turned off, it leaves nothing of itself in the cluster.
    windlass.kill();
    let mut without = testbed.windlass().with(&["--cluster-dns-bind-address", ""]);
    let kubectl = without.up();
    let services = kubectl.run(&["get", "services,endpointslices", "-n", "kube-system", "-o", "name"]);
    assert!(!services.contains("kube-dns"), "{services}");
    assert!(bed.try_ask(From::Host, SOCKET, "udp", "cluster.local SOA").is_err());
    kubectl.apply(&crate::shell_pod("plain", "Never", "cat /etc/resolv.conf"));
    wait_for(&kubectl, "plain", "has ended", |pod| pod["status"]["phase"] == "Succeeded");
    assert!(!kubectl.run(&["logs", "plain"]).contains(DNS));
    assert!(shared_dir::events(&kubectl, "plain").contains("MissingClusterDNS"));
}

fn pods_are_told_of_it(bed: &Bed<'_>) {
    for pod in ["client", "host"] {
        let file = bed.exec(pod, "cat /etc/resolv.conf").expect("the file is there");
        let searches = "search default.svc.cluster.local svc.cluster.local cluster.local corp.test";
        assert_eq!(file, format!("nameserver {DNS}\n{searches}\noptions ndots:5\n"), "{pod}");
        assert!(!shared_dir::events(&bed.kubectl, pod).contains("MissingClusterDNS"));
        // By the search path, as programs look names up.
        for name in ["front", "front.default", "front.default.svc"] {
            let page = eventually(DEFAULT_TIMEOUT, "the page of a Service by its name", || {
                bed.exec(pod, &format!("curl -fsS -m 3 http://{name}/"))
            });
            assert!(page.starts_with("web-"), "{page}");
        }
        let found = bed.exec(pod, "nslookup web-0.nginx.default.svc.cluster.local").expect("nslookup in the pod");
        assert!(found.contains("web-0.nginx.default.svc.cluster.local"), "{found}");
        assert!(bed.exec(pod, "nslookup none.default.svc.cluster.local").is_err());
    }
    assert_eq!(bed.exec("client", "curl -fsS -m 3 http://web-1.nginx/").expect("curl in the pod").trim(), "web-1");
}

fn names_of_objects(bed: &Bed<'_>, web0: &str, web1: &str) {
    let dashed = |ip: &str| ip.replace('.', "-");
    let reverse = |ip: &str| ip.rsplit('.').collect::<Vec<_>>().join(".");
    let mut both = bed.ask("nginx.default.svc.cluster.local A");
    both.sort();
    let mut expected = [web0, web1].map(|ip| format!("nginx.default.svc.cluster.local A {ip}"));
    expected.sort();
    assert_eq!(both, [&["NOERROR aa ra".to_owned()], &expected[..]].concat());
    let of_port = "_web._tcp.nginx.default.svc.cluster.local SRV";
    let found = bed.ask(of_port);
    for (pod, ip) in [("web-0", web0), ("web-1", web1)] {
        assert!(found.contains(&format!("{of_port} 0 50 80 {pod}.nginx.default.svc.cluster.local")), "{found:?}");
        assert!(found.contains(&format!("additional: {pod}.nginx.default.svc.cluster.local A {ip}")), "{found:?}");
    }
    let soa = "authority: cluster.local SOA ns.dns.cluster.local";
    for (text, expected) in [
        ("front.default.svc.cluster.local A", "front.default.svc.cluster.local A 10.96.0.77".to_owned()),
        ("FRONT.default.SVC.cluster.local A", "FRONT.default.SVC.cluster.local A 10.96.0.77".to_owned()),
        ("kubernetes.default.svc.cluster.local A", "kubernetes.default.svc.cluster.local A 10.96.0.1".to_owned()),
        ("web-1.nginx.default.svc.cluster.local A", format!("web-1.nginx.default.svc.cluster.local A {web1}")),
        ("77.0.96.10.in-addr.arpa PTR", "77.0.96.10.in-addr.arpa PTR front.default.svc.cluster.local".to_owned()),
        (
            &format!("{}.in-addr.arpa PTR", reverse(web0)),
            format!("{}.in-addr.arpa PTR web-0.nginx.default.svc.cluster.local", reverse(web0)),
        ),
        (
            &format!("{}.default.pod.cluster.local A", dashed(web0)),
            format!("{}.default.pod.cluster.local A {web0}", dashed(web0)),
        ),
        ("dns-version.cluster.local TXT", "dns-version.cluster.local TXT 1.1.0".to_owned()),
        ("elsewhere.default.svc.cluster.local CNAME", "elsewhere.default.svc.cluster.local CNAME www.test".to_owned()),
        ("front.default.svc.cluster.local AAAA", soa.to_owned()),
        ("default.svc.cluster.local A", soa.to_owned()),
    ] {
        assert_eq!(bed.ask(text), ["NOERROR aa ra", &expected], "{text}");
    }
    for text in
        ["none.default.svc.cluster.local A", "web-2.nginx.default.svc.cluster.local A", "none.svc.cluster.local A"]
    {
        assert_eq!(bed.ask(text), ["NXDOMAIN aa ra", soa], "{text}");
    }
    assert_eq!(bed.ask("cluster.local AXFR"), ["REFUSED ra"]);
    // An alias to another Service has its address in the same answer.
    assert_eq!(
        bed.ask("other.default.svc.cluster.local A")[1..],
        [
            "other.default.svc.cluster.local CNAME front.default.svc.cluster.local",
            "front.default.svc.cluster.local A 10.96.0.77",
        ]
    );
    // Changes show at once: nothing of the cluster is kept.
    let patch = r#"{"spec":{"externalName":"www.none.test"}}"#;
    let _ = bed.kubectl.run(&["patch", "service", "elsewhere", "-p", patch]);
    bed.becomes(
        "elsewhere.default.svc.cluster.local CNAME",
        &["NOERROR aa ra", "elsewhere.default.svc.cluster.local CNAME www.none.test"],
    );
    let _ = bed.kubectl.run(&["patch", "service", "elsewhere", "-p", r#"{"spec":{"externalName":"www.test"}}"#]);
    bed.becomes(
        "elsewhere.default.svc.cluster.local A",
        &["NOERROR aa ra", "elsewhere.default.svc.cluster.local CNAME www.test", "www.test A 203.0.113.0"],
    );
}

fn names_of_others(bed: &Bed<'_>, questions: &Path) {
    for _ in 0..3 {
        assert_eq!(bed.ask("a.test A"), ["NOERROR ra", "a.test A 203.0.113.0"]);
    }
    assert_eq!(asked(questions, "a.test 1 "), 1, "the answer is kept");
    assert_eq!(bed.ask("A.TEST A"), ["NOERROR ra", "A.TEST A 203.0.113.0"]);
    assert_eq!(bed.ask("none.test A"), ["NXDOMAIN ra"]);
    // More than UDP has room for comes over TCP on both sides.
    let over_udp = bed.ask("big.test A");
    assert_eq!(over_udp[0], "NOERROR tc ra");
    let over_tcp = bed.try_ask(From::Pod, (DNS, 53), "tcp", "big.test A").expect("an answer");
    assert_eq!(over_tcp.lines().count(), 201, "{over_tcp}");
    assert_eq!(asked(questions, "big.test 1 tcp"), 1);
    let of_cluster = bed.try_ask(From::Pod, (DNS, 53), "tcp", "front.default.svc.cluster.local A").expect("an answer");
    assert!(of_cluster.contains("A 10.96.0.77"), "{of_cluster}");
}

fn its_name_servers_follow_the_file(bed: &Bed<'_>, file: &Path, others: &Path) {
    fs::write(file, format!("nameserver {}\n", RESOLVERS[1])).expect("a file can be written");
    let mut serial = 0;
    eventually(DEFAULT_TIMEOUT, "the other name server is asked", || {
        serial += 1;
        let _ = bed.ask(&format!("n{serial}.test A"));
        anyhow::ensure!(asked(others, &format!("n{serial}.test")) == 1);
        Ok(())
    });
}

fn who_is_answered(bed: &Bed<'_>) {
    for (from, server) in [(From::Host, (DNS, 53)), (From::Host, SOCKET), (From::Pod, SOCKET)] {
        for transport in ["udp", "tcp"] {
            let answer = bed.try_ask(from, server, transport, "front.default.svc.cluster.local A");
            let answer = answer.unwrap_or_else(|e| panic!("{from:?} {server:?} {transport}: {e:#}"));
            assert!(answer.contains("A 10.96.0.77"), "{from:?} {server:?} {transport}: {answer}");
        }
    }
    // A machine outside gets no answer, whatever it asks, not even by a route to cluster IPs.
    let _ = bed.testbed.try_sh_outside("ip route add 10.96.0.0/16 via 198.18.0.1").expect("a route can be added");
    for server in [SOCKET, (DNS, 53)] {
        for transport in ["udp", "tcp"] {
            for text in ["front.default.svc.cluster.local A", "a.test A"] {
                let answer = bed.try_ask(From::Outside, server, transport, text);
                let error = answer.expect_err("a machine outside is answered");
                assert!(format!("{error:#}").contains("no answer"), "{error:#}");
            }
        }
    }
    let metrics = bed.kubectl.run(&["get", "--raw", "/metrics"]);
    for family in ["coredns_dns_requests_total{", "coredns_cache_hits_total{", "windlass_dns_refused_sources_total{"] {
        assert!(metrics.contains(family), "{family}");
    }
}
