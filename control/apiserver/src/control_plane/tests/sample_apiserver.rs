//! Upstream's sample extension API server behind an APIService of a control plane of ours: it reads who may ask from our
//! ConfigMap, asks us for reviews, and keeps its objects in an etcd of its own.

use std::{
    net::TcpListener as StdListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use windlass_tests::{cluster::assets, skip};

use super::*;
use crate::store::{Expected, Key, Write};

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
const ONE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.wardle.example.com";

/// A program that ends with the test.
struct Program(Child);

impl Program {
    fn start(path: &Path, arguments: &[String], log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The programs, if this machine has them.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let found = assets().map(|dir| (dir.join("etcd"), dir.join("sample-apiserver")));
    found.filter(|(etcd, sample)| etcd.exists() && sample.exists())
}

struct Bed {
    served: Served,
    client: Client,
    folder: tempfile::TempDir,
}

impl Bed {
    async fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let request = axum::http::Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.header("accept", "application/json").body(kube::client::Body::from(text.into_bytes()));
        let answer = self.client.send(request.unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    async fn create(&self, path: &str, body: Value) {
        let (code, made) = self.send("POST", path, body).await;
        assert_eq!(code, 201, "{path}: {made}");
    }

    async fn until(&self, path: &str, done: impl Fn(u16, &Value) -> bool) -> Value {
        for _ in 0..1200 {
            let (code, body) = self.send("GET", path, Value::Null).await;
            if done(code, &body) {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let log = fs::read_to_string(self.folder.path().join("sample.log")).unwrap_or_default();
        let (code, body) = self.send("GET", path, Value::Null).await;
        panic!("{path}: {code} {body}\n{log}");
    }

    /// The API takes no endpoint at the loopback device.
    async fn put_slice(&self, port: u16) {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "api-1", "namespace": "wardle", "labels": {"kubernetes.io/service-name": "api"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}],
            "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        });
        let store = &self.served.plane.store;
        let (resource, key) = (
            store.resource("endpointslices.discovery.k8s.io"),
            Key { namespace: "wardle".to_owned(), name: "api-1".to_owned() },
        );
        let (expected, value) = (Expected::Absent, Some(slice));
        let write = Write { resource, key, expected, value, guards: Vec::new(), companions: Vec::new() };
        store.write(write).await.unwrap();
    }
}

/// The certificate of `api.wardle.svc`, which is its own authority, in files.
fn certificate(folder: &Path) -> (String, [String; 2]) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["api.wardle.svc".to_owned()]).unwrap().self_signed(&key).unwrap();
    let files = ["serving.crt", "serving.key"].map(|name| folder.join(name));
    fs::write(&files[0], certificate.pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    (STANDARD.encode(certificate.pem()), files.map(|file| file.display().to_string()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sample_apiserver_is_aggregated() {
    let Some((etcd, sample)) = programs() else {
        return skip("sample-apiserver", "KUBEBUILDER_ASSETS does not have it and etcd");
    };
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(folder.path(), Lifetimes::default()).await;
    let stop = CancellationToken::new();
    let (plane, token) = (served.plane.clone(), stop.clone());
    tokio::spawn(async move { plane.aggregate(token).await });
    let controllers = served.plane.client(User::internal("system:kube-controller-manager"));
    let token = stop.clone();
    tokio::spawn(async move {
        windlass_controllers::run(controllers, windlass_controllers::Config::default(), token).await
    });
    let kubeconfig = folder.path().join("sample.kubeconfig");
    fs::write(&kubeconfig, served.kubeconfig()).unwrap();
    let client = served.plane.client(User::internal("jane"));
    let bed = Bed { served, client, folder };
    let dir = bed.folder.path();
    let (client_port, peer_port, port) = (free_port(), free_port(), free_port());
    let etcd_url = format!("http://127.0.0.1:{client_port}");
    let arguments = [
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls={etcd_url}"),
        format!("--advertise-client-urls={etcd_url}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
        "--unsafe-no-fsync".to_owned(),
    ];
    let _etcd = Program::start(&etcd, &arguments, &dir.join("etcd.log"));
    let (bundle, [certificate, key]) = certificate(dir);
    let config = kubeconfig.display();
    let arguments = [
        format!("--etcd-servers={etcd_url}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={certificate}"),
        format!("--tls-private-key-file={key}"),
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
    ];
    let mut sample = Program::start(&sample, &arguments, &dir.join("sample.log"));
    for name in ["wardle", "ending", "held"] {
        bed.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
    let service = json!({"metadata": {"name": "api"}, "spec": {"ports": [{"port": 443}]}});
    bed.create("/api/v1/namespaces/wardle/services", service).await;
    bed.put_slice(port).await;
    for (version, priority) in [("v1alpha1", 15), ("v1beta1", 20)] {
        let registered = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.wardle.example.com")},
            "spec": {"group": "wardle.example.com", "version": version, "groupPriorityMinimum": 2000,
                "versionPriority": priority, "caBundle": bundle, "service": {"namespace": "wardle", "name": "api"}},
        });
        bed.create("/apis/apiregistration.k8s.io/v1/apiservices", registered).await;
    }
    let passed = |_: u16, object: &Value| object["status"]["conditions"][0]["message"] == "all checks passed";
    bed.until(ONE, passed).await;
    bed.until(&ONE.replace("v1alpha1", "v1beta1"), passed).await;
    // It believes who we say that asks, and asks us what they may.
    bed.until(FLUNDERS, |code, _| code == 200).await;
    objects(&bed).await;
    documents(&bed).await;
    // It is emptied with a namespace, and holds one up while it cannot be asked.
    let flunder = json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder", "metadata": {"name": "f"}});
    bed.create(&FLUNDERS.replace("default", "ending"), flunder.clone()).await;
    bed.create(&FLUNDERS.replace("default", "held"), flunder).await;
    assert_eq!(bed.send("DELETE", "/api/v1/namespaces/ending", Value::Null).await.0, 200);
    bed.until("/api/v1/namespaces/ending", |code, _| code == 404).await;
    sample.kill();
    let touched = json!({"metadata": {"labels": {"touched": "yes"}}});
    assert_eq!(bed.send("PATCH", ONE, touched).await.0, 200);
    bed.until(ONE, |_, object| object["status"]["conditions"][0]["reason"] == "FailedDiscoveryCheck").await;
    assert_eq!(bed.send("DELETE", "/api/v1/namespaces/held", Value::Null).await.0, 200);
    let held = bed
        .until("/api/v1/namespaces/held", |_, object| {
            let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.iter().any(|one| one["type"] == "NamespaceDeletionDiscoveryFailure" && one["status"] == "True")
        })
        .await;
    let said = held["status"]["conditions"].to_string();
    assert!(said.contains("Discovery failed for some groups, ") && said.contains("wardle.example.com/v1"), "{said}");
    stop.cancel();
}

/// Objects of the extension through our API.
async fn objects(bed: &Bed) {
    let flunder = |name: &str| {
        json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
            "metadata": {"name": name, "labels": {"of": "test"}}, "spec": {"reference": "x"}})
    };
    for name in ["a", "b"] {
        bed.create(FLUNDERS, flunder(name)).await;
    }
    let (code, list) = bed.send("GET", FLUNDERS, Value::Null).await;
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(2)), "{list}");
    let (code, changed) =
        bed.send("PATCH", &format!("{FLUNDERS}/a"), json!({"metadata": {"labels": {"c": "d"}}})).await;
    assert_eq!((code, &changed["metadata"]["labels"]["c"]), (200, &json!("d")), "{changed}");
    let (code, status) = bed.send("POST", FLUNDERS, flunder("a")).await;
    assert_eq!((code, &status["reason"]), (409, &json!("AlreadyExists")), "{status}");
    // A watch: the event of an object that is there arrives, though the watch goes on.
    let request = axum::http::Request::get(format!("{FLUNDERS}?watch=true&resourceVersion=0"));
    let watch = bed.client.send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
    let mut body = watch.into_body();
    let frame = tokio::time::timeout(Duration::from_secs(60), body.frame()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&frame.into_data().unwrap()).contains("\"ADDED\""));
    // Whom we give no rights it gives none: nothing arrives there.
    let nobody = bed.served.plane.client(User { name: "nobody".to_owned(), ..User::default() });
    let request = axum::http::Request::get(FLUNDERS).body(kube::client::Body::empty()).unwrap();
    assert_eq!(nobody.send(request).await.unwrap().status(), 403);
    let (code, _) = bed.send("DELETE", &format!("{FLUNDERS}/b"), Value::Null).await;
    assert_eq!(code, 200);
    let (code, _) = bed.send("DELETE", &format!("{FLUNDERS}?labelSelector=of%3Dtest"), Value::Null).await;
    assert_eq!(code, 200);
    let (_, list) = bed.send("GET", FLUNDERS, Value::Null).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{list}");
}

/// What clients learn of it.
async fn documents(bed: &Bed) {
    let group = bed.until("/apis/wardle.example.com", |code, _| code == 200).await;
    assert_eq!(group["preferredVersion"]["version"], "v1beta1");
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let aggregated = async || {
        let request = axum::http::Request::get("/apis").header("accept", accept);
        let answer = bed.client.send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        let all = list["items"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["metadata"]["name"] == "wardle.example.com").unwrap_or_default()
    };
    let mut found = aggregated().await;
    for _ in 0..600 {
        if found["versions"][0]["freshness"] == "Current" && found["versions"][1]["freshness"] == "Current" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        found = aggregated().await;
    }
    assert_eq!(found["versions"][0]["version"], "v1beta1", "{found}");
    let resources = found["versions"][1]["resources"].as_array().unwrap();
    let names: Vec<&str> = resources.iter().map(|one| one["resource"].as_str().unwrap()).collect();
    assert_eq!(names, ["fischers", "flunders"]);
    let path = "apis/wardle.example.com/v1alpha1";
    let index = bed.until("/openapi/v3", |_, index| !index["paths"][path].is_null()).await;
    let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap().to_owned();
    let (code, document) = bed.send("GET", &url, Value::Null).await;
    assert_eq!(code, 200, "{document}");
    assert!(!document["paths"][format!("/{path}/namespaces/{{namespace}}/flunders")].is_null());
    let merged = bed
        .until("/openapi/v2", |_, merged| {
            !merged["paths"][format!("/{path}/namespaces/{{namespace}}/flunders")].is_null()
        })
        .await;
    assert!(!merged["paths"]["/apis/apps/v1/deployments"].is_null());
    assert!(merged["definitions"].as_object().unwrap().keys().any(|name| name.ends_with("v1alpha1.Flunder")));
}
