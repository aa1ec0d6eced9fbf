//! `make bench-extension`: what hangs into the API compared with what does not: custom objects with ConfigMaps, rules with none,
//! webhooks with bare calls. Prints lines for docs/performance.md; arguments select parts.
//!
//! The server is `windlass up --no-node`. With KUBEBUILDER_ASSETS the same rules are measured in a real kube-apiserver. Costs are
//! the server's CPU time for a request, so that the client and others on the machine do not count.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

mod objects;
mod target;
mod webhook;

use std::time::{Duration, Instant};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use windlass_bench::{
    Steal,
    client::{Server, request},
    median,
};
use windlass_tests::{Daemon, Testbed, cluster, cluster::Part, resident_megabytes};

use objects::{
    NAMESPACE, RULES, config_map, definition, route, schema_of_routes, schema_of_size, schema_of_things, thing,
};
use target::{Target, objects_path};
use webhook::Webhook;

const START_TIMEOUT: Duration = Duration::from_secs(120);
const LARGE: usize = 1_400_000;
const LARGE_ROUNDS: usize = 5;
const DEFINITIONS: usize = 500;
/// The size of each of many definitions.
const USUAL: usize = 10_000;
const CHANGES: usize = 20;
const CHANGE_PAUSE: Duration = Duration::from_millis(250);
const BARE_CALLS: usize = 500;

fn row(figure: &str, ours: &str, other: &str, ratio: &str, goal: &str) {
    println!("| {figure} | {ours} | {other} | {ratio} | {goal} |");
}

fn micro(cost: f64) -> String {
    format!("{cost:.0} µs")
}

fn main() -> anyhow::Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let parts = ["objects", "rules", "webhooks", "definitions"];
    if let Some(unknown) = asked.iter().find(|part| !parts.contains(&part.as_str())) {
        anyhow::bail!("{unknown} is no part of this benchmark; parts are {}", parts.join(", "));
    }
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|one| one == part);
    let testbed = Testbed::without_docker();
    // Before this thread enters the node's namespace.
    let upstream = (wanted("rules") && cluster::assets().is_some()).then(|| testbed.api_server());
    let windlass = testbed.windlass();
    let mut command = windlass.command("up");
    command.arg("--no-node").env("WINDLASS_LOG", "warn");
    let mut daemon = Daemon::start("windlass up --no-node", &mut command, &testbed.dir().join("server.log"))?;
    testbed.enter()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (steal, load) = (Steal::begin()?, std::fs::read_to_string("/proc/loadavg")?);
    let server = runtime.block_on(answers(&windlass.kubeconfig(), &mut daemon))?;
    runtime.block_on(async {
        let mut ours = Target::new(&server, daemon.pid()).await?;
        println!("| figure | windlass | compared with | ratio | goal |\n|---|---|---|---|---|");
        if wanted("objects") {
            custom_objects(&mut ours).await?;
        }
        if wanted("rules") {
            let own = rules(&mut ours).await?;
            row("rules of a route, an object", &micro(own), "", "", "≤ 200 µs");
            if let Some(plane) = upstream {
                let pid = plane.pid(Part::ApiServer).ok_or_else(|| anyhow::anyhow!("kube-apiserver does not run"))?;
                let mut theirs = Target::new(&Server::of(&plane.admin())?, pid).await?;
                let of_theirs = rules(&mut theirs).await?;
                row("— in kube-apiserver", &micro(own), &micro(of_theirs), &format!("{:.2}", own / of_theirs), "≤ 2");
                // The server has closed what was idle meanwhile.
                ours.connection = server.connect(0).await?;
            }
        }
        if wanted("webhooks") {
            webhooks(&mut ours).await?;
        }
        if wanted("definitions") {
            large_definitions(&mut ours).await?;
            many_definitions(&mut ours).await?;
        }
        anyhow::Ok(())
    })?;
    println!("\nLoad averages at the start: {}. {}", load.trim(), steal.summary()?);
    Ok(())
}

/// Waits for the first answer; returns the server.
async fn answers(kubeconfig: &std::path::Path, daemon: &mut Daemon) -> anyhow::Result<Server> {
    let (started, get) = (Instant::now(), request("GET", "/api/v1/namespaces/default", ""));
    loop {
        anyhow::ensure!(daemon.runs(), "the server ended: {}", daemon.log());
        anyhow::ensure!(started.elapsed() < START_TIMEOUT, "no answer: {}", daemon.log());
        let tried = async {
            let server = Server::of(kubeconfig)?;
            server.connect(0).await?.text(&get, 200).await?;
            anyhow::Ok(server)
        };
        if let Ok(server) = tried.await {
            return Ok(server);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn maps_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

/// A custom object's writes compared with a ConfigMap's of its size.
async fn custom_objects(target: &mut Target) -> anyhow::Result<()> {
    target.define(&definition("things", "Thing", &schema_of_things())).await?;
    let (maps, things) = (maps_path(), objects_path("things"));
    let post = |path: &str, object: Value| (request("POST", path, &object.to_string()), 201);
    let of_map = |at: usize| post(&maps, config_map(&format!("map-{at}"), "no"));
    let of_thing = |at: usize| post(&things, thing(&format!("thing-{at}")));
    let pair = target.compare(&of_map, &of_thing).await?;
    let size = thing("thing-0").to_string().len();
    let figure = format!("a custom object of {size} bytes created; a ConfigMap of its size");
    row(&figure, &micro(pair.other.cpu), &micro(pair.one.cpu), &format!("{:.2}", pair.ratio), "≤ 1.5");
    target.post(&maps, &config_map("one", "no")).await?;
    target.post(&things, &thing("one")).await?;
    let change = |path: String, part: &str, at: usize| {
        (request("PATCH", &path, &json!({part: {"field00": format!("{at:090}")}}).to_string()), 200)
    };
    let of_map = |at: usize| change(format!("{maps}/one"), "data", at);
    let of_thing = |at: usize| change(format!("{things}/one"), "spec", at);
    let pair = target.compare(&of_map, &of_thing).await?;
    row("— changed", &micro(pair.other.cpu), &micro(pair.one.cpu), &format!("{:.2}", pair.ratio), "≤ 1.5");
    Ok(())
}

/// What rules cost an object, in microseconds.
async fn rules(target: &mut Target) -> anyhow::Result<f64> {
    target.define(&definition("plainroutes", "PlainRoute", &schema_of_routes(&[]))).await?;
    target.define(&definition("routes", "Route", &schema_of_routes(&RULES))).await?;
    let of = |plural: &str, kind: &str, at: usize| {
        (request("POST", &objects_path(plural), &route(kind, &format!("r{at}")).to_string()), 201)
    };
    let pair = target.compare(&|at| of("plainroutes", "PlainRoute", at), &|at| of("routes", "Route", at)).await?;
    Ok(pair.more.cpu)
}

/// What a webhook adds to a write, beyond a bare call with the same review.
async fn webhooks(target: &mut Target) -> anyhow::Result<()> {
    let webhook = Webhook::start().await?;
    let rules = json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    let config =
        json!({"url": format!("https://{}/admit", webhook.address), "caBundle": BASE64_STANDARD.encode(&webhook.pem)});
    let maps = maps_path();
    for (name, label) in [("plain", "no"), ("hooked", "yes")] {
        target.post(&maps, &config_map(name, label)).await?;
    }
    let change = |name: &str, at: usize| {
        let body = json!({"data": {"field00": format!("{at:090}")}}).to_string();
        (request("PATCH", &format!("{maps}/{name}"), &body), 200)
    };
    let before = target.compare(&|at| change("plain", at), &|at| change("hooked", at)).await?;
    for (kind, name) in [("mutating", "m.bench.example"), ("validating", "v.bench.example")] {
        let hook = json!({"name": name, "clientConfig": config, "rules": rules, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "objectSelector": {"matchLabels": {"hooked": "yes"}}});
        let object = json!({"metadata": {"name": "bench"}, "webhooks": [hook]});
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations");
        target.post(&path, &object).await?;
        let pair = target.compare(&|at| change("plain", at), &|at| change("hooked", at)).await?;
        let bare = bare_calls(&webhook).await?;
        let beyond = pair.more.time - bare;
        let figure = format!("a {kind} webhook, beyond its bare call (times)");
        row(&figure, &micro(pair.more.time), &micro(bare), &format!("{:+.0} µs", beyond), "≤ +1,000 µs");
        row("— CPU time of the server", &micro(pair.more.cpu), "", "", "");
        if kind == "validating" {
            let beside = pair.one.cpu / before.one.cpu;
            row(
                "a write that no webhook is for, to one without any",
                &micro(pair.one.cpu),
                &micro(before.one.cpu),
                &format!("{beside:.2}"),
                "",
            );
        }
        let path = format!("{path}/bench");
        anyhow::ensure!(target.status("DELETE", &path, "").await? == 200, "{path} cannot be deleted");
    }
    Ok(())
}

/// The median time of a call with the last review, in microseconds.
async fn bare_calls(webhook: &Webhook) -> anyhow::Result<f64> {
    let server = Server::of_certificate(webhook.address, webhook.certificate.clone())?;
    let (mut connection, call) = (server.connect(0).await?, request("POST", "/admit", &webhook.last_review()?));
    let mut times = Vec::new();
    for _ in 0..BARE_CALLS {
        let started = Instant::now();
        connection.text(&call, 200).await?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// A definition as large as the largest that operators have.
async fn large_definitions(target: &mut Target) -> anyhow::Result<()> {
    let schema = schema_of_size(LARGE);
    let (mut times, mut cpus, mut size) = (Vec::new(), Vec::new(), 0);
    for round in 0..LARGE_ROUNDS {
        let definition = definition(&format!("larges{round}"), &format!("Large{round}"), &schema);
        size = definition.to_string().len();
        let cpu = target.cpu()?;
        times.push(target.define(&definition).await?.as_secs_f64() * 1e3);
        cpus.push((target.cpu()? - cpu).as_secs_f64() * 1e3);
    }
    let figure = format!(
        "a definition of {:.1} MB, created until its objects are served (median of {LARGE_ROUNDS})",
        size as f64 / 1e6
    );
    row(&figure, &format!("{:.0} ms", median(times)), "", "", "≤ 300 ms");
    row("— CPU time of the server", &format!("{:.0} ms", median(cpus)), "", "", "");
    for round in 0..LARGE_ROUNDS {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/larges{round}.{}", objects::GROUP);
        target.status("DELETE", &path, "").await?;
    }
    Ok(())
}

/// Five hundred definitions: their memory, and a change to one of them.
async fn many_definitions(target: &mut Target) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_secs(20)).await;
    let before = resident_megabytes(target.pid)?;
    let schema = schema_of_size(USUAL);
    let mut size = 0;
    for at in 0..DEFINITIONS {
        let definition = definition(&format!("many{at}s"), &format!("Many{at}"), &schema);
        size = definition.to_string().len();
        target.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await?;
    }
    let last = objects_path(&format!("many{}s", DEFINITIONS - 1));
    while target.status("GET", &last, "").await? != 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    let after = resident_megabytes(target.pid)?;
    let figure = format!("{DEFINITIONS} definitions of {:.0} KB: resident memory", size as f64 / 1e3);
    row(&figure, &format!("{:.1} MB", after - before), "", "", "≤ 60 MB");
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/many7s.{}", objects::GROUP);
    let idle = target.cpu()?;
    tokio::time::sleep(CHANGE_PAUSE * u32::try_from(CHANGES)?).await;
    let idle = target.cpu()? - idle;
    let cpu = target.cpu()?;
    for at in 0..CHANGES {
        let body = json!({"spec": {"names": {"categories": [format!("category{at}")]}}}).to_string();
        anyhow::ensure!(target.status("PATCH", &path, &body).await? == 200, "{path} cannot be changed");
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
    let each = (target.cpu()? - cpu).saturating_sub(idle).as_secs_f64() * 1e3 / CHANGES as f64;
    row("— CPU time of a change to one of them", &format!("{each:.2} ms"), "", "", "≤ 5 ms");
    Ok(())
}
