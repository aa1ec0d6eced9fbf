//! Counts a node's requests in the API server's audit log, which has one line for each answered request.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::{Value, json};
use windlass_bench::{IMAGE, Pods, created_and_deleted};
use windlass_tests::Testbed;

const MINUTE: Duration = Duration::from_secs(60);

/// Requests within a period, by verb and resource.
pub(super) struct Counts {
    what: String,
    took: Duration,
    by_kind: BTreeMap<String, f64>,
}

impl Counts {
    /// A result row with requests per item.
    pub(super) fn row(&self, per: usize, goal: &str) -> String {
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        let share = |count: f64| count / per as f64;
        let output = self.by_kind.iter().filter(|(_, count)| share(**count).abs() >= 0.05);
        let parts: Vec<String> = output.map(|(of, count)| format!("{of} {:.1}", share(*count))).collect();
        let all = share(self.by_kind.values().sum());
        format!("| requests, {}: {} | {all:.1} | | | {goal} |", self.what, parts.join(", "))
    }

    /// Subtracts the requests that the node would have made anyway in that time.
    fn without(mut self, idle: &Self) -> Self {
        let times = self.took.as_secs_f64() / idle.took.as_secs_f64();
        for (of, count) in &idle.by_kind {
            *self.by_kind.entry(of.clone()).or_default() -= count * times;
        }
        self
    }
}

/// Prints the requests for pods from their creation until their removal from the API.
pub(super) fn of_lives(testbed: &Testbed, pods: &Pods<'_>, lives: usize) -> anyhow::Result<()> {
    let idle = of_a_minute(testbed, "no pods")?;
    println!("{}", idle.row(1, "13"));
    let plain = Pods::obedient("plain")?;
    let counts = counted(testbed, "a pod's life", || {
        (0..lives).try_for_each(|_| pods.ask(async |client| lived(client, &plain).await))
    })?;
    println!("{}", counts.without(&idle).row(lives, "12"));
    let rich = rich()?;
    pods.ask(async |client| objects(client).await)?;
    let counts = counted(testbed, "the life of a pod with a ConfigMap, a Secret and an init container", || {
        (0..lives).try_for_each(|_| pods.ask(async |client| lived(client, &rich).await))
    })?;
    println!("{}", counts.without(&idle).row(lives, ""));
    let many: Vec<Pod> = (0..50).map(|i| Pods::obedient(&format!("many-{i}"))).collect::<anyhow::Result<_>>()?;
    let counts = counted(testbed, "a pod's life, 50 at once", || pods.live_at_once(&many))?;
    println!("{}", counts.without(&idle).row(many.len(), ""));
    Ok(())
}

/// The requests of a node in an idle minute.
pub(super) fn of_a_minute(testbed: &Testbed, with: &str) -> anyhow::Result<Counts> {
    counted(testbed, &format!("an idle minute with {with}"), || {
        std::thread::sleep(MINUTE);
        Ok(())
    })
}

async fn lived(client: &Client, pod: &Pod) -> anyhow::Result<()> {
    created_and_deleted(client, pod).await?;
    // Events arrive later.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(())
}

/// A pod with volumes from a ConfigMap and a Secret.
fn rich() -> anyhow::Result<Pod> {
    let mut pod = Pods::obedient("rich")?;
    let spec = pod.spec.as_mut().expect("made with one");
    spec.init_containers =
        Some(serde_json::from_value(json!([{"name": "init", "image": IMAGE, "command": ["true"]}]))?);
    spec.volumes = Some(serde_json::from_value(json!([{"name": "map", "configMap": {"name": "bench"}}]))?);
    spec.containers[0].volume_mounts = Some(serde_json::from_value(json!([{"name": "map", "mountPath": "/map"}]))?);
    spec.containers[0].env_from = Some(serde_json::from_value(json!([{"secretRef": {"name": "bench"}}]))?);
    Ok(pod)
}

async fn objects(client: &Client) -> anyhow::Result<()> {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::{Api, api::PostParams};
    let map = serde_json::from_value(json!({"metadata": {"name": "bench"}, "data": {"KEY": "value"}}))?;
    Api::<ConfigMap>::default_namespaced(client.clone()).create(&PostParams::default(), &map).await?;
    let secret = serde_json::from_value(json!({"metadata": {"name": "bench"}, "stringData": {"KEY": "value"}}))?;
    Api::<Secret>::default_namespaced(client.clone()).create(&PostParams::default(), &secret).await?;
    Ok(())
}

/// The requests during some work.
fn counted(testbed: &Testbed, what: &str, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Counts> {
    let (before, begun) = (testbed.cluster().requests().lines().count(), Instant::now());
    work()?;
    let took = begun.elapsed();
    let mut by_kind = BTreeMap::new();
    for line in testbed.cluster().requests().lines().skip(before) {
        if let Some(kind) = serde_json::from_str(line).ok().and_then(|request| kind(&request)) {
            *by_kind.entry(kind).or_default() += 1.0;
        }
    }
    Ok(Counts { what: what.to_owned(), took, by_kind })
}

/// Verb and resource of a request, and its error status; none for the end of a watch, whose start was counted.
fn kind(request: &Value) -> Option<String> {
    let text = |pointer: &str| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (verb, stage) = (text("/verb"), text("/stage"));
    let code = request.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default();
    let refused = code >= 400;
    // A rejected watch has no start.
    if verb == "watch" && stage == "ResponseComplete" && !refused {
        return None;
    }
    let (of, sub) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    let slash = if sub.is_empty() { "" } else { "/" };
    let refusal = if refused { format!(" ({code})") } else { String::new() };
    Some(format!("{verb} {of}{slash}{sub}{refusal}"))
}
