//! Who is asked: our API, or a real server.

use std::collections::BTreeMap;

use serde_json::Value;

/// Who sends a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller<'a> {
    /// One who may do everything.
    Administrator,
    /// A user as `NAME,GROUP,KEY=VALUE`, with groups and further attributes.
    User(&'a str),
    /// The holder of a bearer token.
    Token(&'a str),
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) caller: Caller<'a>,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) accept: &'a str,
    pub(crate) body: &'a str,
}

/// An answer; the body is `null` where it is no JSON.
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) body: Value,
    /// The `Warning` headers.
    pub(crate) warnings: Vec<String>,
}

/// An API server with a namespace `n`, whose default service account is there, and `kube-system`.
pub(crate) trait Server {
    /// Forgets everything else.
    async fn start_afresh(&mut self) -> anyhow::Result<()>;

    /// Sends a request.
    async fn ask(&self, request: &Request<'_>) -> anyhow::Result<Reply>;

    /// Changes the stored object of a path behind the server's back, past what it would refuse.
    async fn write_past(&self, path: &str, change: &dyn Fn(Value) -> Value) -> anyhow::Result<()>;

    /// Waits until the server serves the kinds of definitions, which have these paths.
    async fn established(&mut self, definitions: &[String]) -> anyhow::Result<()>;

    /// Waits until the server knows what was created just now: parts of a real one learn it by watches.
    async fn settle(&self);
}

/// A server, and what it serves.
pub(crate) struct Asking<S> {
    server: S,
    /// The paths of kinds by `apiVersion` and kind, as discovery has them.
    collections: BTreeMap<(String, String), String>,
}

impl<S: Server> Asking<S> {
    pub(crate) fn new(server: S) -> Self {
        Self { server, collections: BTreeMap::new() }
    }

    pub(crate) async fn start_afresh(&mut self) -> anyhow::Result<()> {
        self.server.start_afresh().await
    }

    pub(crate) fn server(&mut self) -> &mut S {
        &mut self.server
    }

    /// Sends an administrator's request with a body in JSON, or without one.
    pub(crate) async fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Reply> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { JSON };
        let caller = Caller::Administrator;
        self.server.ask(&Request { caller, method, path, content_type, accept: JSON, body: &body }).await
    }

    /// The same; another code than this is an error.
    pub(crate) async fn must(&self, code: u16, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let reply = self.call(method, path, body).await?;
        anyhow::ensure!(reply.code == code, "{method} {path}: {} {}", reply.code, reply.body);
        Ok(reply.body)
    }

    /// The path of all objects of a kind; namespaced ones are in namespace `n`.
    pub(super) async fn collection(&mut self, api_version: &str, kind: &str) -> anyhow::Result<String> {
        let key = (api_version.to_owned(), kind.to_owned());
        if !self.collections.contains_key(&key) {
            let root = if api_version.contains('/') { "/apis" } else { "/api" };
            let root = format!("{root}/{api_version}");
            let found = self.must(200, "GET", &root, &Value::Null).await?;
            for resource in found["resources"].as_array().into_iter().flatten() {
                let (name, kind) = (resource["name"].as_str().unwrap_or(""), resource["kind"].as_str().unwrap_or(""));
                let namespace = if resource["namespaced"] == true { "/namespaces/n" } else { "" };
                if !name.contains('/') {
                    let key = (api_version.to_owned(), kind.to_owned());
                    self.collections.insert(key, format!("{root}{namespace}/{name}"));
                }
            }
        }
        let found = self.collections.get(&key).cloned();
        found.ok_or_else(|| anyhow::anyhow!("{api_version} {kind} is not served"))
    }
}

/// The usual content type.
pub(super) const JSON: &str = "application/json";
