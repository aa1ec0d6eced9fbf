//! Pod networks: our own with both address families, and those of other CNI plugins.

use std::{fs, net::IpAddr, path::Path};

use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, Kubectl, Testbed,
    cluster::{Api, Part},
    eventually,
};

use crate::shared_dir::{SharedDir, condition, container_status, is_ready, wait_for, wait_for_event};

fn web(name: &str, host_port: u16) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "windlass/busybox:1",
            "command": ["sh", "-c", "mkdir /tmp/w; hostname > /tmp/w/index.html; exec httpd -f -p '[::]:80' -h /tmp/w"],
            "ports": [{"containerPort": 80, "hostPort": host_port}]}]}})
    .to_string()
}

fn addresses(pod: &Value) -> Vec<IpAddr> {
    let all = pod["status"]["podIPs"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|ip| ip["ip"].as_str()?.parse().ok()).collect()
}

/// Requests the page of the pod `web`, which contains its name, until it is served.
fn comes(what: &str, mut ask: impl FnMut() -> anyhow::Result<String>) {
    eventually(DEFAULT_TIMEOUT, what, || {
        let page = ask()?;
        anyhow::ensure!(page.contains("web"), "{page:?}");
        Ok(())
    });
}

fn gone(kubectl: &Kubectl<'_>, name: &str) {
    let _ = kubectl.run(&["delete", "pod", name]);
}

#[test]
fn dual_stack() {
    const RANGES: &str = "10.244.0.0/16,fd00:10:244::/56";
    let testbed = Testbed::new();
    if testbed.api() == Api::Cluster {
        // There a controller allocates the nodes' pod ranges.
        testbed.cluster().change(Part::ControllerManager, &[&format!("--cluster-cidr={RANGES}")]);
    }
    let mut windlass = testbed.windlass().with(&["--cluster-cidr", RANGES]);
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    kubectl.apply(&web("web", 8081));
    let pod = wait_for(&kubectl, "web", "is ready", is_ready);
    let [four, six] = addresses(&pod)[..] else { panic!("one address of each family: {pod}") };
    assert!(four.is_ipv4() && six.is_ipv6(), "{pod}");
    assert_eq!(pod["status"]["podIP"], four.to_string());
    for at in [format!("{four}"), format!("[{six}]")] {
        comes(&format!("the node reaches the pod at {at}"), || testbed.try_sh(&format!("curl -sg -m 3 http://{at}/")));
    }
    // From another pod, whose environment has both of its addresses.
    let line = format!(
        "cat /etc/hosts > /shared/hosts; echo $IPS > /shared/ips; \
         while ! wget -qO- 'http://[{six}]/' > /shared/page; do sleep 0.2; done; exec sleep 1000"
    );
    let spec = json!({"containers": [{"name": "main", "command": ["sh", "-c", line],
        "env": [{"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}]}]});
    kubectl.apply(&shared.pod("client", spec));
    let client = wait_for(&kubectl, "client", "is ready", is_ready);
    comes("a pod reaches the other by IPv6", || Ok(shared.lines("page").concat()));
    let own = addresses(&client);
    assert_eq!(shared.lines("ips"), [format!("{},{}", own[0], own[1])]);
    for ip in &own {
        assert!(shared.lines("hosts").contains(&format!("{ip}\tclient")), "{:?}", shared.lines("hosts"));
    }
    comes("the host's port leads to it", || testbed.try_sh_outside("curl -s -m 3 http://198.18.0.1:8081/"));

    // A restart keeps both; the pod's end frees both.
    windlass.kill();
    let kubectl = windlass.up();
    let again = wait_for(&kubectl, "web", "is ready again", is_ready);
    assert_eq!(addresses(&again), [four, six]);
    assert_eq!(container_status(&again)["restartCount"], 0);
    comes("it is reached as before", || testbed.try_sh(&format!("curl -sg -m 3 'http://[{six}]/'")));
    gone(&kubectl, "web");
    let held = testbed.dir().join("data/network");
    for file in [held.join(four.to_string()), held.join("v6").join(six.to_string())] {
        assert!(!file.exists(), "{} is still held", file.display());
    }
    let routes = testbed.sh("ip -6 route");
    assert!(!routes.contains(&six.to_string()), "{routes}");
}

fn count(dir: &Path) -> usize {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter(|f| f.file_name().to_string_lossy().parse::<IpAddr>().is_ok()).count()
}

#[test]
fn cni_plugins() {
    let testbed = Testbed::new();
    let conf = testbed.dir().join("cni.d");
    let leases = testbed.dir().join("leases");
    fs::create_dir_all(&conf).unwrap();
    let conf_text = conf.to_string_lossy().into_owned();
    let mut windlass = testbed.windlass().with(&["--network", "cni", "--cni-conf-dir", &conf_text]);
    windlass.start();
    let kubectl = windlass.kubectl();
    // Without a configuration the node is not ready and runs no pod; with one it does.
    eventually(DEFAULT_TIMEOUT, "the node says what it lacks", || {
        let ready = condition(&kubectl.json(&["node", "node"])?, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        anyhow::ensure!(ready["status"] == "False" && message.contains("reason:NetworkPluginNotReady"), "{ready}");
        anyhow::ensure!(message.ends_with("there is no file that ends in .conf, .conflist or .json"), "{ready}");
        Ok(())
    });
    kubectl.apply(&web("web", 8082));
    wait_for_event(&kubectl, "web", "untolerated taint");
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni-pods", "isGateway": true, "ipMasq": true,
         "ipam": {"type": "host-local", "dataDir": leases, "ranges": [[{"subnet": "10.99.0.0/24"}]],
                  "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}}]});
    fs::write(conf.join("10-pods.conflist"), list.to_string()).unwrap();
    let pod = wait_for(&kubectl, "web", "is ready", is_ready);
    let [ip] = addresses(&pod)[..] else { panic!("one address: {pod}") };
    assert!(ip.to_string().starts_with("10.99.0."), "{ip}");
    comes("the node reaches the pod", || testbed.try_sh(&format!("curl -s -m 3 http://{ip}/")));
    comes("the host's port leads to it", || testbed.try_sh_outside("curl -s -m 3 http://198.18.0.1:8082/"));
    let leased = leases.join("pods");
    assert_eq!(count(&leased), 1);

    // The sandbox dies during the downtime: the pod gets a new one, and no address leaks.
    windlass.kill();
    let sandbox = testbed.docker(&["ps", "-q", "--filter", "label=io.kubernetes.docker.type=podsandbox"]);
    let _ = testbed.docker(&["rm", "-f", sandbox.trim()]);
    let kubectl = windlass.up();
    let again =
        wait_for(&kubectl, "web", "runs in a new sandbox", |p| is_ready(p) && container_status(p)["restartCount"] == 1);
    let now = addresses(&again)[0];
    comes("it is reached at its new address", || testbed.try_sh(&format!("curl -s -m 3 http://{now}/")));
    eventually(DEFAULT_TIMEOUT, "the old address was given back", || {
        anyhow::ensure!(count(&leased) == 1, "{} addresses are leased", count(&leased));
        Ok(())
    });
    // The same for a pod that is deleted during the downtime.
    gone(&kubectl, "web");
    eventually(DEFAULT_TIMEOUT, "everything was given back", || {
        anyhow::ensure!(
            count(&leased) == 0 && fs::read_dir(testbed.dir().join("data/cni"))?.next().is_none(),
            "not yet"
        );
        let rules = testbed.try_sh("iptables-save")?;
        anyhow::ensure!(!rules.contains("8082") && !rules.contains("10.99.0."), "{rules}");
        Ok(())
    });
}
