//! Names that others depend on, such as dashboards and alerts: a gap is a failure here and not a silent alert there.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;
use windlass_fixtures::facts::rows;
use windlass_kit::prometheus::Format;

use super::{Bed, put};
use crate::Config;

/// Controllers that need a configuration of their own, and those that upstream does not have.
const OTHERS: [&str; 3] = [
    "certificatesigningrequest-cleaner-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
];
const NEED_CONFIGURATION: [&str; 1] = ["serviceaccount_tokens_service"];

#[tokio::test]
async fn queues_have_upstreams_names() {
    let config = Config::default();
    let metrics = config.metrics.clone();
    let bed = Bed::new(config).await;
    bed.server.until("serviceaccounts", "they run", |accounts| !accounts.is_empty()).await;
    let page = metrics.page(Format::Plain);
    let shown: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("workqueue_depth{name=\"")?.split('"').next())
        .filter(|name| !OTHERS.contains(name))
        .collect();
    let table = rows(include_str!("queues.tsv")).map(|row| row[1]);
    let expected: BTreeSet<&str> = table.filter(|name| !NEED_CONFIGURATION.contains(name)).collect();
    assert_eq!(shown, expected);
    bed.end().await;
}

#[tokio::test]
async fn metrics_have_upstreams_names_types_and_labels() {
    let config = Config::default();
    let metrics = config.metrics.clone();
    let bed = Bed::new(config).await;
    // For families that are written by hand.
    put(&Api::<Node>::all(bed.client.clone()), json!({"metadata": {"name": "n"}})).await;
    bed.server.until("serviceaccounts", "they run", |accounts| !accounts.is_empty()).await;
    bed.server.until("nodes", "a zone is known", |nodes| !nodes[0]["spec"]["podCIDR"].is_null()).await;
    let (page, described) = (metrics.page(Format::Plain), metrics.described());
    let wrong: Vec<String> = rows(include_str!("metrics.tsv"))
        .filter_map(|row| {
            let kind = format!("# TYPE {} {}", row[0], row[1]);
            let labels: BTreeSet<&str> = row[2].split(',').filter(|label| !label.is_empty()).collect();
            let shown: BTreeSet<&str> = described.get(row[0])?.iter().map(String::as_str).collect();
            (!page.lines().any(|line| line == kind) || shown != labels).then(|| format!("{row:?}: {shown:?}"))
        })
        .chain(
            rows(include_str!("metrics.tsv"))
                .map(|row| row[0])
                .filter(|name| !described.contains_key(*name))
                .map(str::to_owned),
        )
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    bed.end().await;
}
