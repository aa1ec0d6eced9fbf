//! Extension API servers: the same server registered with both, and what clients see of it as it comes, goes and misbehaves.

use serde_json::{Value, json};
use windlass_tests::NODE_IP;

use crate::{
    Report,
    api_server::{ApiServer, JSON, Step},
    extension_server::{Act, ExtensionServer, GROUP},
    scenario::{MERGE, step},
    with_both_servers,
};

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const ONE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example";
const THINGS: &str = "/apis/ext.example/v1/namespaces/default/things";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const REASON: &str = "/body/status/conditions/0/reason";

fn ask(name: &str, method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    step(&format!("extension: {name}"), "admin", method, path, kind, body)
}

fn get(name: &str, path: &str) -> Step {
    ask(name, "GET", path, JSON, Value::Null)
}

/// An API server with an extension of its own.
struct Side<'a> {
    api: &'a ApiServer,
    extension: ExtensionServer,
}

impl Side<'_> {
    /// An answer without where the extension of the side is, and what only that has.
    fn placeless(&self, answer: &Value) -> anyhow::Result<Value> {
        let text = answer.to_string().replace(&self.extension.address.to_string(), "EXTENSION");
        let text = text.replace(&self.extension.ca_bundle(), "CA");
        let mut answer: Value = serde_json::from_str(&text)?;
        if let Some(headers) = answer.pointer_mut("/body/headers").and_then(Value::as_object_mut) {
            // The administrators of the two have other credentials.
            headers.retain(|name, _| {
                [
                    "accept",
                    "content-type",
                    "user-agent",
                    "x-remote-user",
                    "x-forwarded-uri",
                    "authorization",
                    "x-remote-uid",
                ]
                .contains(&name.as_str())
            });
        }
        Ok(answer)
    }

    async fn ask(&self, step: &Step) -> anyhow::Result<Value> {
        self.placeless(&self.api.ask(step).await?)
    }

    async fn until(&self, step: &Step, pointer: &str, value: &Value) -> anyhow::Result<Value> {
        self.placeless(&self.api.ask_until(step, pointer, value).await?)
    }

    /// The groups in the order of discovery.
    async fn groups(&self) -> anyhow::Result<Vec<String>> {
        let list = self.api.ask(&get("groups", "/apis")).await?;
        let all = list["body"]["groups"].as_array().into_iter().flatten();
        Ok(all.filter_map(|group| group["name"].as_str().map(str::to_owned)).collect())
    }

    /// What the aggregated document has of a group.
    async fn aggregated(&self, group: &str) -> anyhow::Result<Value> {
        let list = self.api.ask(&Step { accept: AGGREGATED, ..get("aggregated", "/apis") }).await?;
        let mut all = list["body"]["items"].as_array().into_iter().flatten();
        Ok(all.find(|one| one["metadata"]["name"] == group).cloned().unwrap_or_default())
    }
}

struct Pair<'a> {
    real: Side<'a>,
    ours: Side<'a>,
    report: Report,
}

impl Pair<'_> {
    async fn compare(&mut self, step: &Step) -> anyhow::Result<()> {
        let (real, ours) = (self.real.ask(step).await?, self.ours.ask(step).await?);
        self.add(step, &real, &ours);
        Ok(())
    }

    async fn compare_until(&mut self, step: &Step, pointer: &str, value: Value) -> anyhow::Result<()> {
        let (real, ours) =
            tokio::try_join!(self.real.until(step, pointer, &value), self.ours.until(step, pointer, &value))?;
        anyhow::ensure!(real.pointer(pointer) == Some(&value), "{}: {real}", step.name);
        self.add(step, &real, &ours);
        Ok(())
    }

    fn add(&mut self, step: &Step, real: &Value, ours: &Value) {
        self.report.request = format!("{} {} {}", step.method, step.path, step.body);
        self.report.compare(&step.name, real, ours);
    }

    /// Sends each side a request with what is its own.
    async fn create(&mut self, name: &str, path: &str, body: impl Fn(&ExtensionServer) -> Value) -> anyhow::Result<()> {
        for side in [&self.real, &self.ours] {
            let made = side.api.ask(&ask(name, "POST", path, JSON, body(&side.extension))).await?;
            anyhow::ensure!(made["code"] == 201, "{}: {made}", side.api.name);
        }
        Ok(())
    }

    fn act(&self, act: Act) {
        self.real.extension.act(act);
        self.ours.extension.act(act);
    }

    /// Something changes, so that both look again.
    async fn touch(&self, label: &str) -> anyhow::Result<()> {
        for side in [&self.real, &self.ours] {
            side.api
                .ask(&ask("touch", "PATCH", ONE, MERGE, json!({"metadata": {"labels": {"touched": label}}})))
                .await?;
        }
        Ok(())
    }
}

pub(crate) fn extensions_are_aggregated_alike() {
    with_both_servers(async |real, ours| {
        let mut pair = Pair {
            real: Side { api: real, extension: ExtensionServer::start(NODE_IP).await },
            ours: Side { api: ours, extension: ExtensionServer::start(NODE_IP).await },
            report: Report::default(),
        };
        conditions(&mut pair).await?;
        requests(&mut pair).await?;
        discovery(&mut pair).await?;
        claims(&mut pair).await?;
        ends(&mut pair).await?;
        pair.report.print();
        pair.report.assert_all_seen(|row| row.step.starts_with("extension: "));
        Ok(())
    });
}

/// The condition as the parts come.
async fn conditions(pair: &mut Pair<'_>) -> anyhow::Result<()> {
    pair.create("namespace", "/api/v1/namespaces", |_| json!({"metadata": {"name": "ext"}})).await?;
    pair.create("registered", API_SERVICES, |server| server.api_service(GROUP, "v1", (2000, 15))).await?;
    let one = |name: &str| get(name, ONE);
    let wanted = json!("ServiceNotFound");
    pair.compare_until(&one("without a service"), REASON, wanted).await?;
    pair.compare_until(&get("unavailable", THINGS), "/code", json!(503)).await?;
    pair.compare(&get("unavailable resources", "/apis/ext.example/v1")).await?;
    pair.compare(&get("unavailable group", "/apis/ext.example")).await?;
    pair.create("service", "/api/v1/namespaces/ext/services", |_| ExtensionServer::service()).await?;
    pair.compare_until(&one("without endpoints"), REASON, json!("EndpointsNotFound")).await?;
    pair.act(Act::ForbidAll);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/ext/endpointslices";
    pair.create("slice", slices, |server| server.slice()).await?;
    pair.compare_until(&one("that refuses"), REASON, json!("FailedDiscoveryCheck")).await?;
    pair.act(Act::Whole);
    pair.touch("whole").await?;
    pair.compare_until(&one("available"), REASON, json!("Passed")).await?;
    pair.compare(&Step { accept: "application/json;as=Table;v=v1;g=meta.k8s.io", ..one("as a table") }).await
}

/// Requests and their answers.
async fn requests(pair: &mut Pair<'_>) -> anyhow::Result<()> {
    pair.compare_until(&get("list", &format!("{THINGS}?limit=5&a=b%20c")), "/code", json!(200)).await?;
    for (name, method, path, body) in [
        ("object", "GET", "/b", Value::Null),
        ("create", "POST", "?fieldManager=x", json!({"a": 1})),
        ("patch", "PATCH", "/b", json!({"a": 2})),
        ("delete", "DELETE", "/b", Value::Null),
        ("subresource", "PUT", "/b/status", json!({"a": 3})),
        ("escaped", "GET", "/b%20c", Value::Null),
        ("gone", "GET", "/gone", Value::Null),
        ("redirected", "GET", "/away", Value::Null),
    ] {
        let kind = if method == "PATCH" { MERGE } else { JSON };
        pair.compare(&ask(name, method, &format!("{THINGS}{path}"), kind, body)).await?;
    }
    // Who may not is refused before.
    let of_node = |name: &str, path: &str| Step { who: crate::NODE, ..get(name, path) };
    pair.compare(&of_node("refused", THINGS)).await?;
    pair.compare(&of_node("resources for all", "/apis/ext.example/v1")).await?;
    pair.compare(&get("resources", "/apis/ext.example/v1")).await?;
    pair.compare(&get("resources with a slash", "/apis/ext.example/v1/")).await
}

/// Discovery and OpenAPI.
async fn discovery(pair: &mut Pair<'_>) -> anyhow::Result<()> {
    pair.create("alpha", API_SERVICES, |server| server.api_service(GROUP, "v1alpha1", (2000, 20))).await?;
    pair.create("early", API_SERVICES, |server| server.api_service("early.example", "v1", (17_900, 5))).await?;
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut both = (Value::Null, Value::Null);
    while tokio::time::Instant::now() < end {
        both = (pair.real.aggregated(GROUP).await?, pair.ours.aggregated(GROUP).await?);
        let is_current = |group: &Value| {
            let all = group["versions"].as_array().map_or(&[][..], Vec::as_slice);
            all.len() == 2 && all.iter().all(|version| version["freshness"] == "Current")
        };
        if is_current(&both.0) && is_current(&both.1) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    pair.add(&get("aggregated", "/apis"), &both.0, &both.1);
    pair.compare(&get("group", "/apis/ext.example")).await?;
    let (real, ours) = (pair.real.groups().await?, pair.ours.groups().await?);
    let shared = |all: &[String], other: &[String]| -> Vec<String> {
        all.iter().filter(|group| other.contains(group)).cloned().collect()
    };
    let (theirs, own) = (shared(&real, &ours), shared(&ours, &real));
    anyhow::ensure!(theirs.len() > 15, "{theirs:?}");
    pair.add(&get("order of groups", "/apis"), &json!(theirs), &json!(own));
    let url = format!("/paths/apis~1{GROUP}~1v1/serverRelativeURL");
    let index = get("documents", "/openapi/v3");
    let pointer = format!("/body{url}");
    let place = json!(format!("/openapi/v3/apis/{GROUP}/v1?hash=1"));
    let (real, ours) = tokio::try_join!(
        pair.real.api.ask_until(&index, &pointer, &place),
        pair.ours.api.ask_until(&index, &pointer, &place)
    )?;
    let own = |answer: &Value| {
        let all = answer["body"]["paths"].as_object().cloned().unwrap_or_default();
        json!(all.into_iter().filter(|(path, _)| path.contains(GROUP)).collect::<serde_json::Map<_, _>>())
    };
    pair.add(&index, &own(&real), &own(&ours));
    pair.compare(&get("document", &format!("/openapi/v3/apis/{GROUP}/v1?hash=1"))).await?;
    pair.compare(&get("no document", &format!("/openapi/v3/apis/{GROUP}/v1alpha1"))).await?;
    for group in ["v1alpha1.ext.example", "v1.early.example"] {
        for side in [&pair.real, &pair.ours] {
            side.api.ask(&ask("gone", "DELETE", &format!("{API_SERVICES}/{group}"), JSON, Value::Null)).await?;
        }
    }
    Ok(())
}

/// A built-in group that is claimed, and given back.
async fn claims(pair: &mut Pair<'_>) -> anyhow::Result<()> {
    let one = format!("{API_SERVICES}/v1.batch");
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    for side in [&pair.real, &pair.ours] {
        let claimed = side.extension.api_service("batch", "v1", (2000, 15));
        let patch = json!({"metadata": {"labels": null}, "spec": claimed["spec"]});
        let patched = side.api.ask(&ask("claimed", "PATCH", &one, MERGE, patch)).await?;
        anyhow::ensure!(patched["code"] == 200, "{}: {patched}", side.api.name);
    }
    pair.compare_until(&get("claimed", &one), REASON, json!("FailedDiscoveryCheck")).await?;
    pair.compare_until(&get("claimed jobs", jobs), "/code", json!(503)).await?;
    for side in [&pair.real, &pair.ours] {
        side.api.ask(&ask("given back", "DELETE", &one, JSON, Value::Null)).await?;
    }
    pair.compare_until(&get("own jobs", jobs), "/code", json!(200)).await
}

/// The extension dies, and is taken away.
async fn ends(pair: &mut Pair<'_>) -> anyhow::Result<()> {
    pair.real.extension.die();
    pair.ours.extension.die();
    // Connections that were kept are closed, too.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    pair.touch("dead").await?;
    pair.compare_until(&get("dead", ONE), REASON, json!("FailedDiscoveryCheck")).await?;
    pair.compare_until(&get("dead things", THINGS), "/code", json!(503)).await?;
    pair.compare(&get("dead group", "/apis/ext.example")).await?;
    for side in [&pair.real, &pair.ours] {
        side.api.ask(&ask("deleted", "DELETE", ONE, JSON, Value::Null)).await?;
    }
    pair.compare_until(&get("no group", "/apis/ext.example"), "/code", json!(404)).await?;
    pair.compare_until(&get("no things", THINGS), "/code", json!(404)).await
}
