//! The objects that let new nodes join, as `kubeadm init` creates them: RBAC for bootstrap tokens, the public
//! cluster-info, and the kubelet configuration.

use std::process::Command;

use base64::Engine as _;
use serde_json::{Value, json};

use super::{ControlPlane, access::binding};
use crate::Kubectl;

/// The group of kubeadm's bootstrap tokens.
const TOKENS: &str = "system:bootstrappers:kubeadm:default-node-token";
const SYSTEM: &str = "kube-system";

impl ControlPlane {
    /// Creates the objects that let nodes join with a token.
    ///
    /// # Panics
    /// When a file of the cluster cannot be read.
    pub fn admit_nodes(&self, kubectl: &Kubectl<'_>) {
        let authority = std::fs::read(self.certificate("ca.crt")).expect("the cluster's authority");
        kubectl.apply(&objects(&base64::engine::general_purpose::STANDARD.encode(authority)).to_string());
    }

    /// Creates a token that expires at this time (RFC 3339), or never.
    pub fn token(&self, kubectl: &Kubectl<'_>, id: &str, secret: &str, ends: Option<&str>) {
        let mut data = json!({
            "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true", "auth-extra-groups": TOKENS,
        });
        if let Some(ends) = ends {
            data["expiration"] = json!(ends);
        }
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": SYSTEM}, "stringData": data});
        kubectl.apply(&secret.to_string());
    }

    /// The public key pin of the cluster's CA, computed as kubeadm's documentation shows.
    ///
    /// # Panics
    /// Without openssl.
    #[must_use]
    pub fn pin(&self) -> String {
        let script = "openssl x509 -pubkey -noout -in \"$0\" | openssl pkey -pubin -outform der | sha256sum";
        let output = Command::new("sh").args(["-ec", script]).arg(self.certificate("ca.crt")).output().expect("sh");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let hex = text.split(' ').next().unwrap_or_default();
        assert_eq!(hex.len(), 64, "{text} {}", String::from_utf8_lossy(&output.stderr));
        format!("sha256:{hex}")
    }
}

fn role(namespace: Option<&str>, name: &str, resource: &str, names: &[&str], to: (&str, &str)) -> [Value; 2] {
    let (kind, metadata) = match namespace {
        Some(namespace) => ("Role", json!({"name": name, "namespace": namespace})),
        None => ("ClusterRole", json!({"name": name})),
    };
    let mut rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    let api = "rbac.authorization.k8s.io";
    [
        json!({"apiVersion": format!("{api}/v1"), "kind": kind, "metadata": metadata, "rules": [rule]}),
        json!({"apiVersion": format!("{api}/v1"), "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": kind, "name": name},
            "subjects": [{"apiGroup": api, "kind": to.0, "name": to.1}]}),
    ]
}

fn map(namespace: &str, name: &str, key: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {key: text}})
}

/// The kubelet configuration as kubeadm stores it: as Go marshals it, with zeroes for unset fields.
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: \"\"
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
  verbosity: 0
maxPods: 77
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";

const CLUSTER: &str = "apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
networking:
  dnsDomain: cluster.local
  podSubnet: 10.244.0.0/16
  serviceSubnet: 10.96.0.0/16
";

fn objects(authority: &str) -> Value {
    let described = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {authority}\n    server: {}\n  name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
        ControlPlane::url()
    );
    let certificates = "system:certificates.k8s.io:certificatesigningrequests";
    let tokens = ("Group", TOKENS);
    let mut items = vec![
        map("kube-public", "cluster-info", "kubeconfig", &described),
        map(SYSTEM, "kubelet-config", "kubelet", KUBELET),
        map(SYSTEM, "kubeadm-config", "ClusterConfiguration", CLUSTER),
        binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", "Group", TOKENS),
        binding("kubeadm:node-autoapprove-bootstrap", &format!("{certificates}:nodeclient"), "Group", TOKENS),
        binding(
            "kubeadm:node-autoapprove-certificate-rotation",
            &format!("{certificates}:selfnodeclient"),
            "Group",
            "system:nodes",
        ),
    ];
    let anybody = ("User", "system:anonymous");
    for of_role in [
        role(Some("kube-public"), "kubeadm:bootstrap-signer-clusterinfo", "configmaps", &["cluster-info"], anybody),
        role(None, "kubeadm:get-nodes", "nodes", &[], tokens),
        role(Some(SYSTEM), "kubeadm:kubelet-config", "configmaps", &["kubelet-config"], tokens),
        role(Some(SYSTEM), "kubeadm:nodes-kubeadm-config", "configmaps", &["kubeadm-config"], tokens),
        role(Some(SYSTEM), "kube-proxy", "configmaps", &["kube-proxy"], tokens),
    ] {
        items.extend(of_role);
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
