//! Node certificates signed by the cluster: by a bootstrap token, renewed while connections are open, denied, expired.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

use base64::Engine as _;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use windlass_tests::{
    Kubectl, Testbed, Windlass,
    cluster::{ControlPlane, Part},
    eventually,
};

use crate::workload::{CLUSTER_TIMEOUT, PODS, assert_unchanged, controller, running};

crate::tests![
    short_lived_certificates_are_renewed_under_open_streams,
    a_signing_request_is_pending_denied_and_deleted,
    a_certificate_expires_without_a_signer,
    a_client_ca_is_removed_from_the_bundle,
];

const TOKEN: (&str, &str) = ("abcdef", "0123456789abcdef");
/// The group to which kubeadm gives these rights.
const JOINING: &str = "system:bootstrappers:kubeadm:default-node-token";

fn binding(name: &str, role: &str, group: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    })
}

/// The RBAC that lets nodes create signing requests, and that approves their first ones automatically.
const APPROVAL: &str = "kubeadm:node-autoapprove-bootstrap";

/// Creates the bootstrap token and its rights, like kubeadm.
fn allow_bootstrap(kubectl: &Kubectl<'_>) {
    let signer = |which: &str| format!("system:certificates.k8s.io:certificatesigningrequests:{which}");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{}", TOKEN.0), "namespace": "kube-system"},
        "stringData": {"token-id": TOKEN.0, "token-secret": TOKEN.1, "usage-bootstrap-authentication": "true",
                       "auth-extra-groups": JOINING},
    });
    let items = [
        secret,
        binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINING),
        binding(APPROVAL, &signer("nodeclient"), JOINING),
        binding("kubeadm:node-autoapprove-certificate-rotation", &signer("selfnodeclient"), "system:nodes"),
    ];
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
}

/// Starts a node that has only the token.
fn start_bootstrapping(windlass: &mut Windlass<'_>, testbed: &Testbed) {
    let file = testbed.dir().join("bootstrap.kubeconfig");
    let authority = fs::read(testbed.cluster().certificate("ca.crt")).expect("the cluster has an authority");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": ControlPlane::url(),
            "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(authority)}}],
        "users": [{"name": "u", "user": {"token": format!("{}.{}", TOKEN.0, TOKEN.1)}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    fs::write(&file, config.to_string()).expect("the testbed can be written to");
    let mut command = windlass.command("agent");
    command.arg("--bootstrap-kubeconfig").arg(&file);
    windlass.start_with(&mut command);
}

/// The signer's certificate duration; a minute is short enough for a test.
fn shorten_certificate_lifetimes(testbed: &Testbed) {
    testbed.cluster().change(Part::ControllerManager, &["--cluster-signing-duration=60s"]);
}

/// A node with short-lived certificates and the pods of a controller on it.
fn node_with_short_lived_certificates(testbed: &Testbed) -> (Windlass<'_>, Kubectl<'_>, Vec<Value>) {
    shorten_certificate_lifetimes(testbed);
    let mut windlass = testbed.windlass();
    allow_bootstrap(&windlass.kubectl());
    start_bootstrapping(&mut windlass, testbed);
    let kubectl = windlass.is_ready();
    kubectl.apply(&controller("stays", PODS));
    let pods = eventually(CLUSTER_TIMEOUT, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    (windlass, kubectl, pods)
}

fn current(testbed: &Testbed) -> PathBuf {
    testbed.dir().join("data/pki/kubelet-client-current.pem")
}

/// The serial number of the node's current certificate.
fn serial(testbed: &Testbed) -> anyhow::Result<String> {
    testbed.try_sh(&format!("openssl x509 -noout -serial -in {}", current(testbed).display()))
}

fn requests(kubectl: &Kubectl<'_>) -> anyhow::Result<Vec<Value>> {
    Ok(kubectl.json(&["csr"])?["items"].as_array().cloned().unwrap_or_default())
}

fn is_pending(request: &Value) -> bool {
    request["status"]["conditions"].as_array().is_none_or(Vec::is_empty)
}

fn ready_since(kubectl: &Kubectl<'_>) -> String {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status} {.status.conditions[?(@.type=='Ready')].lastTransitionTime}";
    kubectl.run(&["get", "node", "node", "-o", path])
}

/// A kubectl that keeps printing, and its lines.
struct Stream {
    child: Child,
    lines: Receiver<String>,
}

impl Stream {
    fn open(kubectl: &Kubectl<'_>, args: &[&str]) -> Self {
        let mut child =
            kubectl.command().args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl starts");
        let out = BufReader::new(child.stdout.take().expect("piped above"));
        let (tell, lines) = channel();
        thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines }
    }

    /// Checks that it still runs and prints new lines.
    #[track_caller]
    fn lives(&mut self, what: &str) {
        let _ = self.lines.try_iter().count();
        assert!(self.lines.recv_timeout(CLUSTER_TIMEOUT).is_ok(), "{what} says nothing more");
        assert!(self.child.try_wait().expect("a child").is_none(), "{what} has ended");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn short_lived_certificates_are_renewed_under_open_streams() {
    const RENEWALS: usize = 3;
    let testbed = Testbed::on_cluster();
    let (mut windlass, kubectl, pods) = node_with_short_lived_certificates(&testbed);
    let (before, since) = (running(&testbed), ready_since(&kubectl));
    let name = pods[0]["metadata"]["name"].as_str().unwrap_or_default();
    let line = "while :; do echo tick; sleep 1; done";
    let mut command = Stream::open(&kubectl, &["exec", name, "--", "sh", "-c", line]);
    let mut leases = Stream::open(&kubectl, &["get", "lease", "-n", "kube-node-lease", "--watch", "--no-headers"]);

    let mut serials = BTreeSet::new();
    eventually(CLUSTER_TIMEOUT * 2, "the certificate was renewed", || {
        serials.insert(serial(&testbed)?);
        anyhow::ensure!(serials.len() > RENEWALS, "{serials:?}");
        Ok(())
    });
    // One request per certificate, and perhaps one in progress: no loop of requests.
    let made = requests(&kubectl).expect("the API answers").len();
    assert!(made <= serials.len() + 1, "{made} requests for {} certificates", serials.len());
    command.lives("a command in a pod");
    leases.lives("the watch of leases");
    assert_eq!(ready_since(&kubectl), since, "the cluster has marked the node not ready");
    assert_unchanged(&testbed, &kubectl, &before);
    // The log contains no key, and of the token only its id.
    assert!(!windlass.daemon().log().contains(TOKEN.1), "the token's secret is in the log");
}

fn a_signing_request_is_pending_denied_and_deleted() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.kubectl();
    allow_bootstrap(&kubectl);
    let _ = kubectl.run(&["delete", "clusterrolebinding", APPROVAL]);
    start_bootstrapping(&mut windlass, &testbed);
    let waiting = |not: &[String]| {
        eventually(CLUSTER_TIMEOUT, "a request waits", || {
            let all = requests(&kubectl)?;
            let pending: Vec<String> = all
                .iter()
                .filter(|request| is_pending(request))
                .filter_map(|request| request["metadata"]["name"].as_str().map(str::to_owned))
                .filter(|name| !not.contains(name))
                .collect();
            match &pending[..] {
                [one] => Ok(one.clone()),
                several => anyhow::bail!("{several:?}"),
            }
        })
    };
    let first = waiting(&[]);
    eventually(CLUSTER_TIMEOUT, "the log says what to do", || {
        let log = windlass_log(&testbed);
        anyhow::ensure!(log.contains(&format!("kubectl certificate approve {first}")), "{log}");
        Ok(())
    });
    // After a crash there is no second request.
    windlass.kill();
    start_bootstrapping(&mut windlass, &testbed);
    eventually(CLUSTER_TIMEOUT, "the log says it again", || {
        let reports = windlass_log(&testbed).matches("certificate signing request is pending").count();
        anyhow::ensure!(reports > 1, "{reports} times");
        Ok(())
    });
    assert_eq!(requests(&kubectl).expect("the API answers").len(), 1, "one request for the administrator");

    // After a denial there is a new request with another name.
    let _ = kubectl.run(&["certificate", "deny", &first]);
    let second = waiting(std::slice::from_ref(&first));
    // The same after a deletion.
    let uid = kubectl.run(&["get", "csr", &second, "-o", "jsonpath={.metadata.uid}"]);
    let _ = kubectl.run(&["delete", "csr", &second]);
    let third = eventually(CLUSTER_TIMEOUT, "another request waits", || {
        let all = requests(&kubectl)?;
        let new = all.iter().find(|request| is_pending(request) && request["metadata"]["uid"] != uid);
        let name = new.and_then(|request| request["metadata"]["name"].as_str().map(str::to_owned));
        name.ok_or_else(|| anyhow::anyhow!("{} requests", all.len()))
    });
    let _ = kubectl.run(&["certificate", "approve", &third]);
    let _ = windlass.is_ready();
}

fn windlass_log(testbed: &Testbed) -> String {
    fs::read_to_string(testbed.dir().join("windlass.log")).unwrap_or_default()
}

fn a_certificate_expires_without_a_signer() {
    let testbed = Testbed::on_cluster();
    let (_windlass, kubectl, _) = node_with_short_lived_certificates(&testbed);
    let (before, cluster) = (running(&testbed), testbed.cluster());
    cluster.end(Part::ControllerManager, Signal::SIGKILL);
    eventually(CLUSTER_TIMEOUT, "the certificate has ended", || {
        let line = format!("! openssl x509 -noout -checkend 0 -in {}", current(&testbed).display());
        testbed.try_sh(&line).map(drop)
    });
    // The node can neither report nor learn anything; pods keep running.
    eventually(CLUSTER_TIMEOUT, "the log says so", || {
        let log = windlass_log(&testbed);
        anyhow::ensure!(log.contains("certificate"), "{log}");
        Ok(())
    });
    assert!(running(&testbed).is_superset(&before), "containers were ended");
    cluster.begin(Part::ControllerManager);
    assert_unchanged(&testbed, &kubectl, &before);
}

fn a_client_ca_is_removed_from_the_bundle() {
    let testbed = Testbed::on_cluster();
    let (dir, cluster) = (testbed.dir(), testbed.cluster());
    let at = |name: &str| dir.join(name).display().to_string();
    // Another CA, and a client certificate of it in the group of administrators.
    let _ = testbed.sh(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=other -keyout {0} -out {1} && \
         openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /O=system:masters/CN=stranger -keyout {2} -out {3} && \
         echo extendedKeyUsage=clientAuth > {5} && \
         openssl x509 -req -extfile {5} -in {3} -CA {1} -CAkey {0} -CAcreateserial -days 2 -out {4}",
        at("other.key"), at("other.crt"), at("stranger.key"), at("stranger.csr"), at("stranger.crt"), at("stranger.ext"),
    ));
    let own = fs::read_to_string(cluster.certificate("ca.crt")).expect("the cluster has an authority");
    let other = fs::read_to_string(dir.join("other.crt")).expect("it was made above");
    let bundle = at("clients.crt");
    fs::write(&bundle, format!("{own}{other}")).expect("the testbed can be written to");
    let mut windlass = testbed.windlass();
    let mut command = windlass.node_command();
    command.args(["--client-ca-file", &bundle]);
    windlass.start_with(&mut command);
    let _ = windlass.is_ready();
    let code = |certificate: &str, key: &str| {
        let line = format!(
            "curl -sk -o /dev/null -w '%{{http_code}}' --max-time 20 --cert {certificate} --key {key} https://127.0.0.1:10250/healthz || true"
        );
        testbed.sh(&line).trim().to_owned()
    };
    let own_client = || {
        code(
            &cluster.certificate("admin.crt").display().to_string(),
            &cluster.certificate("admin.key").display().to_string(),
        )
    };
    let stranger = || code(&at("stranger.crt"), &at("stranger.key"));
    assert_eq!((own_client().as_str(), stranger().as_str()), ("200", "200"), "clients of both are known");
    fs::write(&bundle, own).expect("the testbed can be written to");
    eventually(CLUSTER_TIMEOUT, "clients of the other one are known no more", || {
        let code = stranger();
        // An unknown certificate either ends the handshake, or its holder is anonymous.
        anyhow::ensure!(matches!(code.as_str(), "000" | "401"), "{code}");
        Ok(())
    });
    assert_eq!(own_client(), "200");
}
