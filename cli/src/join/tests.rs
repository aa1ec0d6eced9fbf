use std::{collections::BTreeMap, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use windlass_agent::certificates::Standing;
use windlass_kit::bootstrap::{self, BadSignature, Pin, Token};

use super::{
    certificate,
    cluster::{self, Namesake},
    cluster_info::{self, Refusal},
    kubelet_config::{self, Taken},
    place::Place,
    unit,
};

fn token() -> Token {
    "abcdef.0123456789abcdef".parse().unwrap()
}

fn authority(name: &str) -> (String, Pin) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let made = params.self_signed(&key).unwrap();
    (made.pem(), Pin::of(made.der()).unwrap())
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
    let ((pem, pin), (other_pem, other)) = (authority("kubernetes"), authority("other"));
    let text = kubeconfig(&described(&pem));
    let data = signed(&text, &token());
    for pins in [&[][..], &[pin], &[other, pin]] {
        let found = cluster_info::judge(&data, &token(), pins).unwrap();
        assert_eq!(
            (found.server.to_string().as_str(), found.authority.as_deref()),
            ("https://10.0.0.1:6443/", Some(pem.as_str()))
        );
        assert!(found.credentials.is_none());
    }
    // A bundle while authorities change.
    let both = signed(&kubeconfig(&described(&format!("{other_pem}{pem}"))), &token());
    assert!(cluster_info::judge(&both, &token(), &[pin]).is_ok());
    let refused = |data: &BTreeMap<String, String>, token: &Token, pins: &[Pin]| {
        cluster_info::judge(data, token, pins).map(|found| found.server).unwrap_err()
    };
    assert!(matches!(refused(&data, &token(), &[other]), Refusal::Pin(why) if why.contains(&pin.to_string())));
    let liar: Token = "abcdef.0123456789abcdee".parse().unwrap();
    assert_eq!(refused(&data, &liar, &[pin]), Refusal::Signature(BadSignature::Wrong));
    let unknown: Token = "zzzzzz.0123456789abcdef".parse().unwrap();
    assert_eq!(refused(&data, &unknown, &[pin]), Refusal::Unsigned);
    assert!(matches!(refused(&BTreeMap::new(), &token(), &[pin]), Refusal::Text(_)));
    let mut changed = data.clone();
    changed.insert("kubeconfig".to_owned(), text.replace("10.0.0.1", "10.0.0.2"));
    assert_eq!(refused(&changed, &token(), &[pin]), Refusal::Signature(BadSignature::Wrong));
    for (cluster, words) in [
        (json!({"server": "https://10.0.0.1:6443"}), "names no certificate authority"),
        (json!({"server": "http://10.0.0.1", "certificate-authority-data": STANDARD.encode(&pem)}), "no https:// URL"),
        (json!({"server": "", "certificate-authority-data": STANDARD.encode(&pem)}), "no https:// URL"),
        (json!({"server": "https://10.0.0.1", "certificate-authority-data": "%"}), "not base64"),
        (json!({"server": "https://10.0.0.1", "insecure-skip-tls-verify": true}), "not to be verified"),
    ] {
        let data = signed(&kubeconfig(&cluster), &token());
        assert!(matches!(refused(&data, &token(), &[]), Refusal::Text(why) if why.contains(words)), "{words}");
    }
}

#[test]
fn a_file_of_discovery_may_hold_credentials() {
    let (pem, _) = authority("kubernetes");
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
        assert_eq!(cluster_info::server(typed).unwrap().to_string(), wanted, "{typed}");
    }
    for wrong in ["", "http://a:1", "a:b", "a:", "a:99999", "a/b", "user@host", "https://"] {
        assert!(cluster_info::server(wrong).is_err(), "{wrong:?}");
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

fn taken(text: &str) -> Taken {
    kubelet_config::taken(text, |_| false).unwrap()
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
    assert_eq!(all.left, [("cgroupDriver".to_owned(), "Docker's counts".to_owned())]);
    // And the node takes the file.
    let text = kubelet_config::written(&all.settings, "from a cluster");
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
    ] {
        assert_eq!(one(text), [(name, value.to_owned())], "{text}");
    }
    for (text, words) in [
        ("featureGates: {A: true}\n", "no such setting"),
        ("cpuManagerPolicy: static\n", "no such setting"),
        ("maxPods: many\n", "maxPods"),
        ("clusterDNS: [nowhere]\n", "clusterDNS"),
        ("tlsCertFile: /etc/tls.crt\n", "no such file here"),
        ("enforceNodeAllocatable: [pods, system-reserved]\n", "pods alone"),
        ("authentication: {anonymous: {enabled: true}}\n", "never let in"),
        ("authorization: {mode: AlwaysAllow}\n", "always asked"),
        ("readOnlyPort: 10255\n", "statsBindAddress"),
        ("failSwapOn: true\n", "no such setting"),
    ] {
        let all = set(text);
        assert!(all.settings.is_empty() && all.left.len() == 1, "{text}: {all:?}");
        assert!(format!("{:?}", all.left[0]).contains(words), "{text}: {all:?}");
    }
    // Files that are there, of which one alone would be refused.
    let head = "kind: KubeletConfiguration\n";
    let files = |text: &str| {
        kubelet_config::taken(&format!("{head}{text}"), |path: &Path| path.starts_with("/there")).unwrap().settings
    };
    assert_eq!(files("tlsCertFile: /there/c\ntlsPrivateKeyFile: /there/k\nstaticPodPath: /there/pods\n").len(), 3);
    assert_eq!(files("tlsCertFile: /there/c\ntlsPrivateKeyFile: /elsewhere/k\nstaticPodPath: /elsewhere/pods\n"), []);
    for wrong in ["", "[]", "kind: KubeProxyConfiguration\n", "a: ["] {
        assert!(kubelet_config::taken(wrong, |_| false).is_err(), "{wrong:?}");
    }
}

#[test]
fn addresses_come_from_kubeadms_configuration() {
    let text = "kind: ClusterConfiguration\nnetworking: {dnsDomain: c.local, podSubnet: 10.1.0.0/16, serviceSubnet: 10.2.0.0/16}\n";
    let told = kubelet_config::of_cluster(text);
    assert_eq!(
        told,
        [
            ("clusterCIDR", json!("10.1.0.0/16")),
            ("serviceCIDR", json!("10.2.0.0/16")),
            ("clusterDomain", json!("c.local"))
        ]
    );
    assert_eq!(kubelet_config::of_cluster("networking: {podSubnet: \"\", serviceSubnet: 10.2.0.1/16}\n"), []);
    assert_eq!(kubelet_config::of_cluster("["), []);
}

#[test]
fn the_clusters_proxy_and_a_node_of_our_name_are_seen() {
    assert_eq!(cluster::proxy(true, None), Some("kube-proxy"));
    assert_eq!(cluster::proxy(false, Some("true")), Some("Cilium"));
    assert_eq!(cluster::proxy(false, Some("false")), None);
    assert_eq!(cluster::proxy(false, None), None);
    let node = |ready: &str, boot: &str| {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "no network"}],
            "nodeInfo": {"architecture": "", "bootID": boot, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                         "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}}))
        .unwrap()
    };
    for (found, wanted) in [
        (None, Namesake::None),
        (Some(node("True", "b")), Namesake::Alive),
        (Some(node("True", "us")), Namesake::TakenOver),
        (Some(node("False", "b")), Namesake::TakenOver),
        (Some(node("Unknown", "b")), Namesake::TakenOver),
        (Some(k8s_openapi::api::core::v1::Node::default()), Namesake::TakenOver),
    ] {
        assert_eq!(cluster::namesake(found.as_ref(), "us"), wanted);
    }
    assert_eq!(cluster::namesake(Some(&node("True", "")), ""), Namesake::Alive);
    assert_eq!(cluster::unready(Some(&node("True", "b"))), None);
    assert_eq!(cluster::unready(Some(&node("False", "b"))).unwrap(), "Ready is False: KubeletNotReady: no network");
    assert!(cluster::unready(None).unwrap().contains("not registered"));
}

#[test]
fn steps_of_the_certificate_are_told() {
    assert_eq!(certificate::words(&Standing::Idle), None);
    for (standing, words) in [
        (Standing::Requested("r".into()), "request r"),
        (Standing::Pending { name: "r".into(), advice: "approve it".into() }, "approve it"),
        (Standing::Approved("r".into()), "r is approved"),
        (Standing::Good { ends: 0 }, "1970-01-01"),
        (Standing::Failed { reason: "denied".into(), refused: true }, "denied"),
    ] {
        assert!(certificate::words(&standing).unwrap().contains(words), "{words}");
    }
}

#[test]
fn a_machine_is_a_node_as_a_whole_or_not_at_all() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::below(dir.path());
    assert!(!place.is_there() && place.credentials().is_none() && place.cluster().is_none());
    // What a crash has left is no node, and is written over.
    std::fs::create_dir(dir.path().join("join.part")).unwrap();
    std::fs::write(dir.path().join("join.part/other"), "").unwrap();
    assert!(!place.is_there());
    let text = kubeconfig(&described("x"));
    place.commit("maxPods: 1\n", &text).unwrap();
    assert!(place.is_there() && !dir.path().join("join/other").exists() && !dir.path().join("join.part").exists());
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
        assert_eq!(place.forget(), Vec::<String>::new());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }
}

#[test]
fn the_unit_is_told_a_line_that_it_reads_back() {
    let line = |args: &[&str]| unit::environment(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
    let text = line(&["agent", "--node-name=n", "--eviction-hard=memory.available<1Gi", "--config=/a b"]).unwrap();
    assert!(
        text.ends_with("WINDLASS_ARGS=\"agent --node-name=n --eviction-hard=memory.available<1Gi '--config=/a b'\"\n"),
        "{text}"
    );
    for bad in ["a'b", "a\"b", "a\\b", "a\nb", "$HOME", "`id`"] {
        assert_eq!(line(&["agent", bad]), None, "{bad:?}");
    }
}
