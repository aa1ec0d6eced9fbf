use std::{collections::BTreeMap, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use windlass_agent::certificates::CertificateState;
use windlass_fixtures::files;
use windlass_kit::{
    bootstrap::{self, BadSignature, Pin, Token},
    serve::certificates,
};

use super::{
    certificate,
    cluster::{self, ExistingNode},
    cluster_info::{self, ClusterInfoError},
    join_dir::JoinDir,
    kubelet_config::{self, ImportedSettings},
};
use crate::service;

fn token() -> Token {
    "abcdef.0123456789abcdef".parse().unwrap()
}

/// An authority that kubeadm made.
fn authority(algorithm: &str) -> (String, Pin) {
    let pem = files::key(&format!("kubeadm-{algorithm}-ca.crt"));
    let pin = Pin::of(&certificates(&pem).unwrap()[0]).unwrap();
    (pem, pin)
}

/// What bootstrapsigner keeps: one cluster whose name is empty.
fn kubeconfig(cluster: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}], "contexts": null,
           "current-context": "", "preferences": {}, "users": null})
    .to_string()
}

fn described(authority: &str) -> Value {
    json!({"server": "https://10.0.0.1:6443", "certificate-authority-data": STANDARD.encode(authority)})
}

fn signed(text: &str, token: &Token) -> BTreeMap<String, String> {
    let signature = bootstrap::sign(token, text.as_bytes());
    [("kubeconfig".to_owned(), text.to_owned()), (format!("jws-kubeconfig-{}", token.id()), signature)].into()
}

#[test]
fn a_cluster_is_believed_by_signature_and_pin() {
    let ((pem, pin), (other_pem, other)) = (authority("RSA-2048"), authority("ECDSA-P256"));
    let text = kubeconfig(&described(&pem));
    let data = signed(&text, &token());
    for pins in [&[][..], &[pin], &[other, pin]] {
        let found = cluster_info::verify(&data, &token(), pins).unwrap();
        assert_eq!(
            (found.server.to_string().as_str(), found.authority.as_deref()),
            ("https://10.0.0.1:6443/", Some(pem.as_str()))
        );
        assert!(found.credentials.is_none());
    }
    // A bundle while authorities change.
    let both = signed(&kubeconfig(&described(&format!("{other_pem}{pem}"))), &token());
    assert!(cluster_info::verify(&both, &token(), &[pin]).is_ok());
    let denied = |data: &BTreeMap<String, String>, token: &Token, pins: &[Pin]| {
        cluster_info::verify(data, token, pins).map(|found| found.server).unwrap_err()
    };
    assert!(matches!(denied(&data, &token(), &[other]), ClusterInfoError::Pin(why) if why.contains(&pin.to_string())));
    let liar: Token = "abcdef.0123456789abcdee".parse().unwrap();
    assert_eq!(denied(&data, &liar, &[pin]), ClusterInfoError::Signature(BadSignature::Wrong));
    let unknown: Token = "zzzzzz.0123456789abcdef".parse().unwrap();
    assert_eq!(denied(&data, &unknown, &[pin]), ClusterInfoError::Unsigned);
    assert!(matches!(denied(&BTreeMap::new(), &token(), &[pin]), ClusterInfoError::Text(_)));
    let mut changed = data.clone();
    changed.insert("kubeconfig".to_owned(), text.replace("10.0.0.1", "10.0.0.2"));
    assert_eq!(denied(&changed, &token(), &[pin]), ClusterInfoError::Signature(BadSignature::Wrong));
    for (cluster, words) in [
        (json!({"server": "https://10.0.0.1:6443"}), "names no certificate authority"),
        (json!({"server": "http://10.0.0.1", "certificate-authority-data": STANDARD.encode(&pem)}), "no https:// URL"),
        (json!({"server": "", "certificate-authority-data": STANDARD.encode(&pem)}), "no https:// URL"),
        (json!({"server": "https://10.0.0.1", "certificate-authority-data": "%"}), "not base64"),
        (json!({"server": "https://10.0.0.1", "insecure-skip-tls-verify": true}), "not to be verified"),
    ] {
        let data = signed(&kubeconfig(&cluster), &token());
        assert!(matches!(denied(&data, &token(), &[]), ClusterInfoError::Text(why) if why.contains(words)), "{words}");
    }
}

#[test]
fn a_file_of_discovery_may_hold_credentials() {
    let (pem, _) = authority("RSA-2048");
    let file = |current: &str| {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": current,
            "clusters": [{"name": "a", "cluster": described("x")}, {"name": "b", "cluster": described(&pem)}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "b", "user": "u"}}, {"name": "d", "context": {"cluster": "z", "user": "u"}}]})
        .to_string()
    };
    let found = cluster_info::read(&file("c")).unwrap();
    assert_eq!(found.authority.as_deref(), Some(pem.as_str()));
    assert!(found.credentials.unwrap().token.is_some());
    for (current, words) in [("", "2 clusters"), ("x", "no context"), ("d", "lacks the cluster")] {
        assert!(cluster_info::read(&file(current)).unwrap_err().contains(words), "{current:?}");
    }
    assert!(cluster_info::read("[").is_err());
    // As kubeadm writes them.
    for algorithm in ["RSA-2048", "ECDSA-P256"] {
        let found = cluster_info::read(&files::key(&format!("kubeadm-{algorithm}-kubelet.conf"))).unwrap();
        assert_eq!(found.server.to_string(), "https://192.0.2.1:6443/", "{algorithm}");
        assert_eq!(found.authority, Some(authority(algorithm).0), "{algorithm}");
        assert!(found.credentials.unwrap().client_certificate_data.is_some(), "{algorithm}");
    }
}

#[test]
fn an_api_server_is_typed_as_for_kubeadm() {
    for (typed, wanted) in [
        ("192.0.2.1:6443", "https://192.0.2.1:6443/"),
        ("https://api.example:8443/", "https://api.example:8443/"),
        ("api.example", "https://api.example:6443/"),
        ("[fd00::1]:6443", "https://[fd00::1]:6443/"),
        ("[fd00::1]", "https://[fd00::1]:6443/"),
    ] {
        assert_eq!(cluster_info::parse_server(typed).unwrap().to_string(), wanted, "{typed}");
    }
    for wrong in ["", "http://a:1", "a:b", "a:", "a:99999", "a/b", "user@host", "https://"] {
        assert!(cluster_info::parse_server(wrong).is_err(), "{wrong:?}");
    }
}

/// As `kubeadm init` of 1.36 leaves it.
const ZEROES: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"#;

fn taken(text: &str) -> ImportedSettings {
    kubelet_config::import(text, |_| false).unwrap()
}

#[test]
fn zeroes_of_the_clusters_kubelet_configuration_are_defaults() {
    let all = taken(ZEROES);
    let settings: Vec<String> = all.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        settings,
        [
            r#"agentHealthzBindAddress="127.0.0.1:10248""#,
            r#"clusterDNS=["10.96.0.10"]"#,
            r#"clusterDomain="cluster.local""#,
            "rotateCertificates=true",
        ]
    );
    assert_eq!(all.skipped, [("cgroupDriver".to_owned(), "Docker's counts".to_owned())]);
    // And the node takes the file.
    let text = kubelet_config::config_file(&all.settings, "from a cluster");
    crate::config::file::parse(&text).unwrap();
}

#[test]
fn what_is_set_is_taken_or_named() {
    let set =
        |text: &str| taken(&format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}"));
    let one =
        |text: &str| set(text).settings.into_iter().map(|(name, value)| (name, value.to_string())).collect::<Vec<_>>();
    for (text, name, value) in [
        ("maxPods: 250\n", "maxPods", "250"),
        (
            "evictionHard: {memory.available: 5%, nodefs.available: \"0%\"}\n",
            "evictionHard",
            r#"{"memory.available":"5%","nodefs.available":"0%"}"#,
        ),
        ("serverTLSBootstrap: true\n", "serverTLSBootstrap", "true"),
        ("rotateCertificates: false\n", "rotateCertificates", "false"),
        ("port: 10350\n", "nodeAPIBindAddress", "\"0.0.0.0:10350\""),
        ("address: fd00::1\n", "nodeAPIBindAddress", "\"[fd00::1]:10250\""),
        (
            "registerWithTaints: [{key: a, effect: NoSchedule}]\n",
            "registerWithTaints",
            r#"[{"effect":"NoSchedule","key":"a"}]"#,
        ),
        ("nodeStatusUpdateFrequency: 1m0s\n", "nodeStatusUpdateFrequency", "\"1m0s\""),
        ("failSwapOn: false\n", "failSwapOn", "false"),
        ("memorySwap: {swapBehavior: LimitedSwap}\n", "memorySwap", r#"{"swapBehavior":"LimitedSwap"}"#),
    ] {
        assert_eq!(one(text), [(name, value.to_owned())], "{text}");
    }
    for (text, words) in [
        ("featureGates: {A: true}\n", "no such gate"),
        ("cpuManagerPolicy: static\n", "shares of CPUs"),
        ("maxPods: many\n", "maxPods"),
        ("clusterDNS: [nowhere]\n", "clusterDNS"),
        ("tlsCertFile: /etc/tls.crt\n", "no such file here"),
        ("enforceNodeAllocatable: [pods, system-reserved]\n", "pods alone"),
        ("authentication: {anonymous: {enabled: true}}\n", "never let in"),
        ("authorization: {mode: AlwaysAllow}\n", "always asked"),
        ("readOnlyPort: 10255\n", "statsBindAddress"),
    ] {
        let all = set(text);
        assert!(all.settings.is_empty() && all.skipped.len() == 1, "{text}: {all:?}");
        assert!(format!("{:?}", all.skipped[0]).contains(words), "{text}: {all:?}");
    }
    // References to existing files, any of which alone would be refused.
    let head = "kind: KubeletConfiguration\n";
    let files = |text: &str| {
        kubelet_config::import(&format!("{head}{text}"), |path: &Path| path.starts_with("/there")).unwrap().settings
    };
    assert_eq!(files("tlsCertFile: /there/c\ntlsPrivateKeyFile: /there/k\nstaticPodPath: /there/pods\n").len(), 3);
    assert_eq!(files("tlsCertFile: /there/c\ntlsPrivateKeyFile: /elsewhere/k\nstaticPodPath: /elsewhere/pods\n"), []);
    for wrong in ["", "[]", "kind: KubeProxyConfiguration\n", "a: ["] {
        assert!(kubelet_config::import(wrong, |_| false).is_err(), "{wrong:?}");
    }
}

#[test]
fn addresses_come_from_kubeadms_configuration() {
    let text = "kind: ClusterConfiguration\nnetworking: {dnsDomain: c.local, podSubnet: 10.1.0.0/16, serviceSubnet: 10.2.0.0/16}\n";
    let told = kubelet_config::from_cluster_configuration(text);
    assert_eq!(
        told,
        [
            ("clusterCIDR", json!("10.1.0.0/16")),
            ("serviceCIDR", json!("10.2.0.0/16")),
            ("clusterDomain", json!("c.local"))
        ]
    );
    assert_eq!(
        kubelet_config::from_cluster_configuration("networking: {podSubnet: \"\", serviceSubnet: 10.2.0.1/16}\n"),
        [("clusterCIDR", json!("")), ("serviceCIDR", json!("10.2.0.0/16"))]
    );
    let without = "kind: ClusterConfiguration\nnetworking: {serviceSubnet: 10.2.0.0/16}\n";
    assert_eq!(kubelet_config::from_cluster_configuration(without)[0], ("clusterCIDR", json!("")));
    assert_eq!(kubelet_config::from_cluster_configuration("["), []);
}

#[test]
fn the_clusters_proxy_and_a_node_of_our_name_are_seen() {
    assert_eq!(cluster::service_proxy(true, None), Some("kube-proxy"));
    assert_eq!(cluster::service_proxy(false, Some("true")), Some("Cilium"));
    assert_eq!(cluster::service_proxy(false, Some("false")), None);
    assert_eq!(cluster::service_proxy(false, None), None);
    let node = |ready: &str, boot: &str| {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "no network"}],
            "nodeInfo": {"architecture": "", "bootID": boot, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                         "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}}))
        .unwrap()
    };
    for (found, wanted) in [
        (None, ExistingNode::None),
        (Some(node("True", "b")), ExistingNode::Alive),
        (Some(node("True", "us")), ExistingNode::TakeOver),
        (Some(node("False", "b")), ExistingNode::TakeOver),
        (Some(node("Unknown", "b")), ExistingNode::TakeOver),
        (Some(k8s_openapi::api::core::v1::Node::default()), ExistingNode::TakeOver),
    ] {
        assert_eq!(cluster::check_existing_node(found.as_ref(), "us"), wanted);
    }
    assert_eq!(cluster::check_existing_node(Some(&node("True", "")), ""), ExistingNode::Alive);
    assert_eq!(cluster::not_ready_reason(Some(&node("True", "b"))), None);
    assert_eq!(
        cluster::not_ready_reason(Some(&node("False", "b"))).unwrap(),
        "Ready is False: KubeletNotReady: no network"
    );
    assert!(cluster::not_ready_reason(None).unwrap().contains("not registered"));
}

#[test]
fn steps_of_the_certificate_are_told() {
    assert_eq!(certificate::describe(&CertificateState::Idle), None);
    for (standing, words) in [
        (CertificateState::Requested("r".into()), "requested as r"),
        (CertificateState::Pending { name: "r".into(), advice: "approve it".into() }, "approve it"),
        (CertificateState::Approved("r".into()), "r is approved"),
        (CertificateState::Valid { not_after: 0 }, "1970-01-01"),
        (CertificateState::Failed { reason: "denied".into(), denied: true }, "denied"),
    ] {
        assert!(certificate::describe(&standing).unwrap().contains(words), "{words}");
    }
}

#[test]
fn a_machine_is_a_node_as_a_whole_or_not_at_all() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let place = JoinDir::in_data_dir(dir.path());
    assert!(!place.exists() && place.credentials().is_none() && place.cluster().is_none());
    // What a crash has left is no node, and is written over.
    std::fs::create_dir(dir.path().join("join.part")).unwrap();
    std::fs::write(dir.path().join("join.part/other"), "").unwrap();
    assert!(!place.exists());
    let text = kubeconfig(&described("x"));
    place.commit("maxPods: 1\n", &text).unwrap();
    assert!(place.exists() && !dir.path().join("join/other").exists() && !dir.path().join("join.part").exists());
    assert_eq!(place.cluster().as_deref(), Some("https://10.0.0.1:6443"));
    let mode = |file: &Path| std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place.kubeconfig()), mode(&place.settings())), (0o600, 0o644));
    // A second one does not change the first.
    assert!(place.commit("other\n", &text).is_err());
    assert_eq!(std::fs::read_to_string(place.settings()).unwrap(), "maxPods: 1\n");
    for file in [
        "registered",
        "api-servers",
        "kept",
        "pki/kubelet.key",
        "pods/u/etc-hosts",
        "pki/kubelet-client-2026-01-31-23-59-59.pem",
    ] {
        let file = dir.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }
    for _ in 0..2 {
        assert_eq!(place.remove_all(), Vec::<String>::new());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }
}

/// Whatever a disk does, there is no half of a node, and what was said to have failed can be tried again.
#[test]
fn each_call_of_a_join_may_fail() {
    let text = kubeconfig(&described("x"));
    let pairs = windlass_model_disk::Case {
        what: "the files of a join",
        prepare: &|_| (),
        act: &|dir| {
            let place = JoinDir::in_data_dir(dir);
            // A second `windlass join` says that the machine is a node; what it takes for one is on disk by then.
            match windlass_kit::disk::kind(&dir.join("join")) {
                Ok(Some(_)) => windlass_kit::disk::sync_parent(&dir.join("join")).map_err(|e| format!("join: {e}")),
                Ok(None) => place.commit("maxPods: 1\n", &text).map_err(|e| format!("{e:#}")),
                Err(error) => Err(format!("join: {error}")),
            }
        },
        judge: &|dir, done, what| {
            let place = JoinDir::in_data_dir(dir);
            assert!(place.exists() || !done, "{what}: it is no node");
            if place.exists() {
                let read = |path: &Path| windlass_kit::disk::read(path).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(read(&place.settings()), b"maxPods: 1\n", "{what}");
                assert_eq!(read(&place.kubeconfig()), text.as_bytes(), "{what}");
            }
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &["join"],
    }
    .run();
    println!("files of a join: {pairs} pairs");
    assert!(pairs > 60, "{pairs}");
}

/// The unit is configured after the node's files are in place: wherever a join stops, the next one sees what is
/// missing.
#[test]
fn each_call_of_a_join_with_its_unit_may_fail() {
    let text = kubeconfig(&described("x"));
    let args = ["agent".to_owned(), "--node-name=n".to_owned()];
    let pairs = windlass_model_disk::Case {
        what: "a join and its unit",
        prepare: &|_| (),
        act: &|dir| {
            let (place, unit) = (JoinDir::in_data_dir(&dir.join("lib")), dir.join("etc/windlass.env"));
            let files = match windlass_kit::disk::kind(&dir.join("lib/join")) {
                Ok(Some(_)) => windlass_kit::disk::sync_parent(&dir.join("lib/join")).map_err(|e| format!("join: {e}")),
                Ok(None) => place.commit("maxPods: 1\n", &text).map_err(|e| format!("{e:#}")),
                Err(error) => Err(format!("join: {error}")),
            };
            files.and_then(|()| service::write_environment(&unit, &args).map_err(|e| format!("join: {e:#}")))
        },
        judge: &|dir, done, what| {
            let (place, unit) = (JoinDir::in_data_dir(&dir.join("lib")), dir.join("etc/windlass.env"));
            let told = windlass_kit::disk::kind(&unit).unwrap().is_some();
            assert!(told || !done, "{what}: the unit is not told");
            if told {
                assert!(place.exists(), "{what}: the unit is told of what is no node");
                let read = windlass_kit::disk::read(&unit).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(read, service::environment(&args).unwrap().into_bytes(), "{what}");
            }
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &["join"],
    }
    .run();
    println!("a join and its unit: {pairs} pairs");
    assert!(pairs > 100, "{pairs}");
}

#[test]
fn the_unit_is_told_a_line_that_it_reads_back() {
    let line = |args: &[&str]| service::environment(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
    let text = line(&["agent", "--node-name=n", "--eviction-hard=memory.available<1Gi", "--config=/a b"]).unwrap();
    assert!(
        text.ends_with("WINDLASS_ARGS=\"agent --node-name=n --eviction-hard=memory.available<1Gi '--config=/a b'\"\n"),
        "{text}"
    );
    for bad in ["a'b", "a\"b", "a\\b", "a\nb", "$HOME", "`id`"] {
        assert_eq!(line(&["agent", bad]), None, "{bad:?}");
    }
}
