//! `windlass proxy` in place of kube-proxy: its configuration file, its flags, the lock against a second one, and
//! cleanup.

use nix::sys::signal::Signal;
use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually};

/// A service with an endpoint on the node itself: no agent runs here.
const ECHO: &str = "apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {type: NodePort, clusterIP: 10.96.7.7, ports: [{port: 80, targetPort: 8080, nodePort: 30077}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-1, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [ADDRESS], nodeName: node}]
";

fn rules(testbed: &Testbed) -> String {
    let text = testbed.sh("iptables-save; ip6tables-save");
    text.lines().filter(|l| !l.starts_with('#')).map(|l| l.split(" [").next().unwrap_or(l).to_owned() + "\n").collect()
}

#[test]
fn windlass_proxy_replaces_kube_proxy() {
    let testbed = Testbed::new();
    let before = rules(&testbed);
    let windlass = testbed.windlass();
    let mut server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let address = testbed.sh("ip -4 -o addr show dev eth0 | awk '{print $4}' | cut -d/ -f1").trim().to_owned();
    let mut echo = testbed.command("busybox");
    echo.args(["nc", "-ll", "-p", "8080", "-e", "echo", "hello"]);
    let _echo = Daemon::start("busybox nc", &mut echo, &testbed.dir().join("nc.log")).unwrap();
    kubectl.apply(&ECHO.replace("ADDRESS", &address));

    let file = testbed.dir().join("kube-proxy.conf");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclientConnection: {{kubeconfig: {}}}\n\
         hostnameOverride: node\nclusterCIDR: 10.244.0.0/16\niptables: {{masqueradeBit: 12, syncPeriod: 5s}}\nmode: iptables\n\
         ipvs: {{scheduler: rr}}\nnewerThanUs: true\n",
        windlass.kubeconfig().display()
    );
    std::fs::write(&file, text).unwrap();
    let start = |log: &str| {
        let mut command = windlass.command("proxy");
        command.arg("--config").arg(&file).args(["--masquerade-all", "--profiling=false", "-v", "4"]);
        Daemon::start("windlass proxy", &mut command, &testbed.dir().join(log)).unwrap()
    };
    let mut proxy = start("proxy.log");
    let ask = |to: &str| testbed.try_sh(&format!("busybox nc -w 3 {to} < /dev/null"));
    for to in ["10.96.7.7 80", "127.0.0.1 30077"] {
        eventually(DEFAULT_TIMEOUT, "the service answers", || {
            anyhow::ensure!(proxy.runs(), "{}", proxy.log());
            anyhow::ensure!(ask(to)?.contains("hello"));
            Ok(())
        });
    }
    assert!(proxy.log().contains("newerThanUs is not known"), "{}", proxy.log());
    let save = testbed.sh("iptables-save -t nat");
    assert!(save.contains("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x1000/0x1000"), "{save}");
    assert!(save.contains("cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ"), "masquerade all: {save}");

    // What operators of kube-proxy look at.
    let walked = windlass.try_run("rules", &["trace", "10.244.0.9", "10.96.7.7:80/tcp", "-o", "json"]).unwrap();
    let walked: Value = serde_json::from_str(&walked).unwrap();
    assert_eq!(walked["outcomes"][0]["end"], format!("to {address}:8080"), "{walked}");
    let tree = windlass.try_run("rules", &["trace", "10.244.0.9", "10.96.7.8:80/tcp"]).unwrap();
    assert!(tree.contains("not translated"), "{tree}");

    // A second proxy waits; when the first is killed it takes over without an interruption.
    let mut second = start("second.log");
    eventually(DEFAULT_TIMEOUT, "the second waits for the first", || {
        anyhow::ensure!(second.log().contains(&format!("process=\"{}\"", proxy.pid())), "{}", second.log());
        Ok(())
    });
    proxy.end(Signal::SIGKILL);
    assert!(ask("10.96.7.7 80").unwrap().contains("hello"));
    eventually(DEFAULT_TIMEOUT, "the second takes over", || {
        anyhow::ensure!(second.log().contains("service rules go to this back end"), "{}", second.log());
        Ok(())
    });
    let _ = kubectl.run(&["delete", "endpointslice", "echo-1"]);
    eventually(DEFAULT_TIMEOUT, "the service is refused", || {
        anyhow::ensure!(testbed.sh("iptables-save -t filter").contains("default/echo has no endpoints"));
        Ok(())
    });
    second.end(Signal::SIGTERM);
    assert!(testbed.sh("iptables-save").contains("default/echo"), "rules outlive the proxy");
    let output = windlass.try_run("proxy", &["cleanup"]).unwrap();
    assert!(output.contains("are removed"), "{output}");
    server.end(Signal::SIGTERM);
    assert_eq!(rules(&testbed), before);

    // Invalid settings are reported before anything is changed.
    std::fs::write(&file, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n")
        .unwrap();
    let refused = windlass.try_run("proxy", &["--config", &file.to_string_lossy()]).unwrap_err().to_string();
    assert!(refused.contains("mode: \"ipvs\" is not done by windlass"), "{refused}");
}
