//! The webhook of Tekton Pipelines as a process, and a server before it that writes down what it is asked and what it answers.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use kube::{Client, Config, client::Body};
use parking_lot::Mutex;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};
use windlass_kit::manifests::{Document, Format, read};
use windlass_tests::{Daemon, NODE_IP, cluster::ControlPlane, try_run};

use crate::{
    exchanges::Call,
    real_server::RealServer,
    recorded::Asking,
    tls_server::{Answered, TlsServer},
};

/// A variable that names a folder with the sources of Tekton Pipelines and its program.
pub(crate) const FOLDER: &str = "TEKTON";

/// Where the operator and its settings live.
const NAMESPACE: &str = "tekton-pipelines";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
/// Its port for probes, another one than that of the library which it is made of.
const PROBES_PORT: &str = "8081";

/// How long it has to come up and to write its configurations.
const LOOKS: usize = 240;
const INTERVAL: Duration = Duration::from_millis(500);
/// Nothing is asked for so long when a request and its conversions for watches are over.
const REST: Duration = Duration::from_millis(500);

/// The folder, if one is named.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// The operator, installed but for its process.
pub(crate) struct Operator {
    folder: PathBuf,
    environment: Vec<(String, String)>,
    /// Paths.
    configurations: Vec<String>,
    log: PathBuf,
    kubeconfig: PathBuf,
}

impl Operator {
    /// Creates what its manifests say of settings, keys and configurations.
    pub(crate) async fn install(asking: &Asking<RealServer>, plane: &ControlPlane) -> anyhow::Result<Self> {
        let folder = folder().with_context(|| format!("{FOLDER} is not set"))?;
        let settings = folder.join("config");
        asking.must(201, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}})).await?;
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(&settings).with_context(|| settings.display().to_string())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("config-") {
                files.push(settings.join(name));
            }
        }
        files.sort();
        files.push(settings.join("500-webhooks.yaml"));
        let mut configurations = Vec::new();
        for document in files.iter().map(|file| documents(file)).collect::<anyhow::Result<Vec<_>>>()?.concat() {
            let all = match document.kind.as_str() {
                "ConfigMap" => format!("/api/v1/namespaces/{NAMESPACE}/configmaps"),
                "Secret" => format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
                "MutatingWebhookConfiguration" => format!("{ADMISSION}/mutatingwebhookconfigurations"),
                "ValidatingWebhookConfiguration" => format!("{ADMISSION}/validatingwebhookconfigurations"),
                other => anyhow::bail!("{other} is not expected"),
            };
            asking.must(201, "POST", &all, &document.value).await?;
            if all.starts_with(ADMISSION) {
                configurations.push(format!("{all}/{}", document.name));
            }
        }
        let environment = environment(&documents(&settings.join("webhook.yaml"))?)?;
        let kubeconfig = plane.admin();
        Ok(Self { folder, environment, configurations, log: kubeconfig.with_file_name("operator.log"), kubeconfig })
    }

    pub(crate) fn configurations(&self) -> &[String] {
        &self.configurations
    }

    /// The reference to its Service.
    pub(crate) fn service(&self) -> Value {
        json!({"namespace": NAMESPACE, "name": self.variable("WEBHOOK_SERVICE_NAME")})
    }

    fn variable(&self, name: &str) -> &str {
        self.environment.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The revision of its sources, if they say it.
    pub(crate) fn revision(&self) -> anyhow::Result<Option<String>> {
        if !self.folder.join(".git").exists() {
            return Ok(None);
        }
        let folder = self.folder.to_string_lossy();
        let revision = try_run("git", &["-C", &folder, "rev-parse", "--short=9", "HEAD"])?;
        Ok(Some(revision.trim().to_owned()))
    }

    /// Starts its process, and waits until that has written its configurations.
    pub(crate) async fn start(&self, asking: &Asking<RealServer>) -> anyhow::Result<Exchanges> {
        let mut command = Command::new(self.folder.join("bin/webhook"));
        let variables = self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        command.envs(variables).env("KUBECONFIG", &self.kubeconfig);
        command.envs([("SYSTEM_NAMESPACE", NAMESPACE), ("PROBES_PORT", PROBES_PORT)]);
        let mut process = Daemon::start("webhook", &mut command, &self.log)?;
        let mut authority = None;
        for _ in 0..LOOKS {
            authority = self.authority(asking).await?;
            if authority.is_some() || !process.runs() {
                break;
            }
            tokio::time::sleep(INTERVAL).await;
        }
        let authority = authority.with_context(|| format!("nothing is configured: {}", process.log()))?;
        let mut config = Config::new(format!("https://127.0.0.1:{}", self.variable("WEBHOOK_PORT")).parse()?);
        let certificates: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(&authority).collect();
        config.root_cert = Some(certificates?.iter().map(|certificate| certificate.to_vec()).collect());
        config.tls_server_name = Some(format!("{}.{NAMESPACE}.svc", self.variable("WEBHOOK_SERVICE_NAME")));
        Exchanges::start(Client::try_from(config)?, process).await
    }

    /// The authority of its certificate, once all configurations and definitions have it.
    async fn authority(&self, asking: &Asking<RealServer>) -> anyhow::Result<Option<Vec<u8>>> {
        let mut found = None;
        for path in &self.configurations {
            let there = asking.must(200, "GET", path, &Value::Null).await?;
            for webhook in there["webhooks"].as_array().into_iter().flatten() {
                let Some(bundle) = webhook["clientConfig"]["caBundle"].as_str() else { return Ok(None) };
                found = Some(STANDARD.decode(bundle)?);
            }
        }
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let definitions = asking.must(200, "GET", definitions, &Value::Null).await?;
        let items = definitions["items"].as_array().into_iter().flatten();
        let mut bundles = items.map(|item| &item["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]);
        Ok(found.filter(|_| bundles.all(Value::is_string)))
    }
}

fn documents(file: &Path) -> anyhow::Result<Vec<Document>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (documents, errors) = read(&text, Format::Yaml);
    anyhow::ensure!(errors.is_empty(), "{}: {errors:?}", file.display());
    Ok(documents)
}

/// The variables of the container, but for those that its pod would have.
fn environment(documents: &[Document]) -> anyhow::Result<Vec<(String, String)>> {
    let deployment = documents.iter().find(|document| document.kind == "Deployment").context("a Deployment")?;
    let variables = deployment.value["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
    let variables = variables.into_iter().flatten();
    Ok(variables
        .filter_map(|one| Some((one["name"].as_str()?.to_owned(), one["value"].as_str()?.to_owned())))
        .collect())
}

/// A server that passes calls on to the operator, and keeps them with their answers.
pub(crate) struct Exchanges {
    server: TlsServer,
    calls: Arc<Mutex<Vec<Call>>>,
    _process: Daemon,
}

impl Exchanges {
    async fn start(operator: Client, process: Daemon) -> anyhow::Result<Self> {
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let kept = Arc::clone(&calls);
        let answer = move |request| pass_on(operator.clone(), Arc::clone(&kept), request);
        Ok(Self { server: TlsServer::start(NODE_IP, answer).await?, calls, _process: process })
    }

    /// A `clientConfig` with the URL of a path.
    pub(crate) fn client_config(&self, path: &str) -> Value {
        let url = format!("https://{NODE_IP}:{}{path}", self.server.port);
        json!({"url": url, "caBundle": STANDARD.encode(&self.server.certificate)})
    }

    /// Waits until nothing more is asked.
    pub(crate) async fn quiet(&self) {
        let mut before = usize::MAX;
        loop {
            let now = self.calls.lock().len();
            if now == before {
                return;
            }
            before = now;
            tokio::time::sleep(REST).await;
        }
    }

    /// The calls since the last question.
    pub(crate) fn taken(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }
}

async fn pass_on(operator: Client, calls: Arc<Mutex<Vec<Call>>>, request: Request<Incoming>) -> Answered {
    let (code, body) = match exchanged(&operator, request).await {
        Ok((call, body)) => {
            calls.lock().push(call);
            (200, body)
        }
        Err(error) => (502, Bytes::from(format!("{error:#}"))),
    };
    Response::builder().status(code).header(header::CONTENT_TYPE, "application/json").body(Full::from(body))
}

async fn exchanged(operator: &Client, request: Request<Incoming>) -> anyhow::Result<(Call, Bytes)> {
    let path = request.uri().path_and_query().map_or(String::new(), ToString::to_string);
    let asked = request.into_body().collect().await?.to_bytes();
    let passed = http::Request::post(&path).header(header::CONTENT_TYPE, "application/json");
    let response = operator.send(passed.body(Body::from(asked.to_vec()))?).await?;
    let code = response.status();
    let answered = response.into_body().collect().await?.to_bytes();
    anyhow::ensure!(code.is_success(), "{path}: {code} {}", String::from_utf8_lossy(&answered));
    let call = Call { path, review: serde_json::from_slice(&asked)?, answer: serde_json::from_slice(&answered)? };
    Ok((call, answered))
}
