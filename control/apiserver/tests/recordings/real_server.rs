//! A real API server that is asked what recorded tables ask, with its etcd: in between everything is as at the beginning.

use std::{collections::BTreeMap, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::header;
use http_body_util::BodyExt as _;
use kube::{
    Client, Config,
    client::Body,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use windlass_tests::cluster::ControlPlane;

use crate::recorded::{Caller, Reply, Request, Server};

/// The state of a key in etcd.
struct Stored {
    /// The revision of its last change.
    revision: String,
    /// In base64, as etcd's gateway has it.
    value: String,
}

/// A real API server.
pub(crate) struct RealServer {
    admin: Client,
    /// Without a certificate, which would come before a token.
    nobody: Client,
    etcd: Client,
    /// What was there at the beginning, by the keys of etcd in base64.
    beginning: BTreeMap<String, Stored>,
    /// How long it takes to learn of what it has stored.
    pub(crate) pause: Duration,
}

/// How often something is tried that the server does by itself, or does in between.
const TRIES: usize = 600;
/// Between two tries.
const INTERVAL: Duration = Duration::from_millis(100);

/// What the server writes all the time.
const ALWAYS: [&str; 2] = ["/registry/leases/kube-system/", "/registry/masterleases/"];

impl RealServer {
    /// A server with the namespaces of the tests, which has just been started and need not be ready.
    pub(crate) async fn new(kubeconfig: &Path) -> anyhow::Result<Self> {
        let read = Kubeconfig::read_from(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let mut unknown = config.clone();
        unknown.auth_info = AuthInfo::default();
        let etcd = Config::new(ControlPlane::etcd().parse()?);
        let mut server = Self {
            admin: Client::try_from(config)?,
            nobody: Client::try_from(unknown)?,
            etcd: Client::try_from(etcd)?,
            beginning: BTreeMap::new(),
            pause: Duration::from_millis(300),
        };
        for _ in 0..TRIES {
            if server.admin("GET", "/readyz", "").await.is_ok_and(|reply| reply.code == 200) {
                break;
            }
            tokio::time::sleep(5 * INTERVAL).await;
        }
        // What it creates itself when it starts, a moment after it is ready.
        for path in ["/api/v1/namespaces/kube-system", "/api/v1/namespaces/default/services/kubernetes"] {
            server.until(path, |reply| reply.code == 200).await?;
        }
        let accounts = ["n", "default"].map(|namespace| format!("/api/v1/namespaces/{namespace}/serviceaccounts"));
        for (path, name) in [("/api/v1/namespaces", "n"), (&accounts[0], "default"), (&accounts[1], "default")] {
            let body = json!({"metadata": {"name": name}}).to_string();
            let made = server.admin("POST", path, &body).await?;
            anyhow::ensure!(made.code == 201, "{path}: {}", made.body);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        for (key, stored) in server.keys(false).await? {
            server.beginning.insert(key, stored);
        }
        Ok(server)
    }

    async fn admin(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Reply> {
        let (content_type, accept) = ("application/json", "application/json");
        self.ask(&Request { caller: Caller::Administrator, method, path, content_type, accept, body }).await
    }

    /// The answer to a GET as soon as it is as it should be.
    pub(crate) async fn until(&self, path: &str, is_done: impl Fn(&Reply) -> bool) -> anyhow::Result<Reply> {
        for _ in 0..TRIES {
            let reply = self.admin("GET", path, "").await?;
            if is_done(&reply) {
                return Ok(reply);
            }
            tokio::time::sleep(INTERVAL).await;
        }
        anyhow::bail!("{path} does not become what it should be")
    }

    /// Sends a request to the gateway of etcd.
    async fn etcd(&self, call: &str, body: &Value) -> anyhow::Result<Value> {
        let request = http::Request::post(format!("/v3/kv/{call}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string().into_bytes()))?;
        let response = self.etcd.send(request).await?;
        let code = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(code.is_success(), "etcd {call}: {code} {}", String::from_utf8_lossy(&bytes));
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// The keys of all objects; those that change all the time are left out.
    async fn keys(&self, is_without_values: bool) -> anyhow::Result<Vec<(String, Stored)>> {
        let (first, end) = (STANDARD.encode("/registry/"), STANDARD.encode("/registry0"));
        let found =
            self.etcd("range", &json!({"key": first, "range_end": end, "keys_only": is_without_values})).await?;
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let mut all = Vec::new();
        for one in found["kvs"].as_array().into_iter().flatten() {
            let key = text(&one["key"]);
            let name = String::from_utf8(STANDARD.decode(&key)?)?;
            if !ALWAYS.iter().any(|start| name.starts_with(start)) {
                all.push((key, Stored { revision: text(&one["mod_revision"]), value: text(&one["value"]) }));
            }
        }
        Ok(all)
    }

    /// Writes an object over the one of this revision; false if it has been changed since.
    async fn overwrite(&self, revision: &str, object: &Value) -> anyhow::Result<bool> {
        let found = self.keys(true).await?;
        let Some((key, _)) = found.iter().find(|(_, stored)| stored.revision == revision) else { return Ok(false) };
        let value = STANDARD.encode(object.to_string());
        let compare = json!({"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision});
        let put = json!({"requestPut": {"key": key, "value": value}});
        Ok(self.etcd("txn", &json!({"compare": [compare], "success": [put]})).await?["succeeded"] == true)
    }
}

/// The headers of a request that acts as a user.
fn impersonation(columns: &str) -> impl Iterator<Item = (String, String)> {
    columns.split(',').enumerate().map(|(at, part)| match part.split_once('=') {
        // In a header's name some letters may not stand.
        Some((key, value)) => (format!("Impersonate-Extra-{}", key.replace('/', "%2F")), value.to_owned()),
        None => (if at == 0 { "Impersonate-User" } else { "Impersonate-Group" }.to_owned(), part.to_owned()),
    })
}

impl Server for RealServer {
    async fn start_afresh(&mut self) -> anyhow::Result<()> {
        let now: BTreeMap<String, Stored> = self.keys(true).await?.into_iter().collect();
        for key in now.keys().filter(|key| !self.beginning.contains_key(*key)) {
            self.etcd("deleterange", &json!({"key": key})).await?;
        }
        let changed =
            |(key, stored): &(&String, &Stored)| now.get(*key).is_none_or(|found| found.revision != stored.revision);
        let changed: Vec<String> = self.beginning.iter().filter(changed).map(|(key, _)| key.clone()).collect();
        for key in changed {
            let done = self.etcd("put", &json!({"key": key, "value": self.beginning[&key].value})).await?;
            if let Some(stored) = self.beginning.get_mut(&key) {
                stored.revision = done["header"]["revision"].as_str().unwrap_or("").to_owned();
            }
        }
        Ok(())
    }

    async fn ask(&self, request: &Request<'_>) -> anyhow::Result<Reply> {
        let mut sent = http::Request::builder()
            .method(request.method)
            .uri(request.path)
            .header(header::CONTENT_TYPE, request.content_type)
            .header(header::ACCEPT, request.accept);
        let mut client = &self.admin;
        match request.caller {
            Caller::Administrator => {}
            Caller::User(columns) => {
                for (name, value) in impersonation(columns) {
                    sent = sent.header(name, value);
                }
            }
            Caller::Token(token) => {
                client = &self.nobody;
                sent = sent.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
        }
        let response = client.send(sent.body(Body::from(request.body.as_bytes().to_vec()))?).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let text = || json!({"message": String::from_utf8_lossy(&bytes)});
        let warnings = parts.headers.get_all(header::WARNING).iter();
        Ok(Reply {
            code: parts.status.as_u16(),
            body: serde_json::from_slice(&bytes).unwrap_or_else(|_| text()),
            warnings: warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect(),
        })
    }

    async fn write_past(&self, path: &str, change: &dyn Fn(Value) -> Value) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let stored = self.admin("GET", path, "").await?.body;
            let revision = stored["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
            let mut object = change(stored);
            object["metadata"].as_object_mut().into_iter().for_each(|all| drop(all.remove("resourceVersion")));
            if self.overwrite(&revision, &object).await? {
                return Ok(());
            }
        }
        anyhow::bail!("{path} cannot be written")
    }

    async fn established(&mut self, definitions: &[String]) -> anyhow::Result<()> {
        for path in definitions {
            let is_established = |reply: &Reply| {
                let conditions = reply.body["status"]["conditions"].as_array();
                conditions.into_iter().flatten().any(|one| one["type"] == "Established" && one["status"] == "True")
            };
            let definition = self.until(path, is_established).await?.body;
            // One of this name may have been there before.
            tokio::time::sleep(self.pause).await;
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            let (group, plural) = (text(&definition["spec"]["group"]), text(&definition["spec"]["names"]["plural"]));
            let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
            for version in versions.filter(|version| version["served"] == true) {
                let all = format!("/apis/{group}/{}/{plural}", text(&version["name"]));
                self.until(&all, |reply| reply.code == 200).await?;
            }
        }
        Ok(())
    }

    async fn settle(&self) {
        tokio::time::sleep(self.pause).await;
    }
}
