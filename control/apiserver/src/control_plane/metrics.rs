//! What `/metrics` of the API shows of the control plane as a whole, under upstream's names.

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    build_info,
    metrics::{Counter, Metrics},
    process_metrics,
    prometheus::{Kind, Text},
    rest_client,
};

use crate::{
    aggregator::{AVAILABLE, GROUP_RESOURCE},
    apiserver::Api,
    kinds::shared::conditions,
    store::{Error, ResourceId, Store},
};

fn services(store: &Store) -> ResourceId {
    store.resource(GROUP_RESOURCE)
}

/// How often APIServices became unavailable.
#[derive(Debug)]
struct Availability(Counter<2>);

impl Default for Availability {
    fn default() -> Self {
        Self(Counter::new(
            "aggregator_unavailable_apiservice_total",
            "APIServices that became unavailable, by name and reason.",
            ["name", "reason"],
        ))
    }
}

impl Metrics for Availability {
    fn write(&self, page: &mut Text) {
        self.0.write(page);
    }
}

impl Availability {
    /// Counts a change, as upstream's aggregator: one that was never available does not become unavailable.
    fn observe(&self, old: Option<&Value>, new: &Value) {
        if !old.is_some_and(|old| conditions::is_true(old, AVAILABLE)) || conditions::is_true(new, AVAILABLE) {
            return;
        }
        let reason = conditions::get(new, AVAILABLE).map_or("UnknownReason", |c| c["reason"].as_str().unwrap_or(""));
        self.0.add([new["metadata"]["name"].as_str().unwrap_or(""), reason]);
    }
}

/// Counts APIServices that become unavailable, until `shutdown`.
pub(super) async fn follow(api: &Api, store: &Store, shutdown: &CancellationToken) {
    let seen = api.metrics().of::<Availability>();
    let resource = services(store);
    while let Ok(mut watch) = store.watch(resource, store.revision()) {
        loop {
            let events = tokio::select! {
                () = shutdown.cancelled() => return,
                events = watch.next() => events,
            };
            match events {
                Ok(events) => {
                    for event in events.iter().filter(|event| !event.deleted) {
                        let old = event.previous.as_ref().map(|old| old.value());
                        seen.observe(old.as_ref(), &event.object.value());
                    }
                }
                Err(Error::Closed) => return,
                // Too slow: what was missed is not counted.
                Err(_) => break,
            }
        }
    }
}

/// Registers the families.
pub(super) fn register(api: &Api, store: &Store) {
    let store = store.clone();
    api.metrics().register(move |page| {
        build_info::write(page);
        api_services(page, &store);
        rest_client::write(page);
        process_metrics::write(page);
    });
}

/// Upstream's aggregator reports every APIService.
fn api_services(page: &mut Text, store: &Store) {
    const NAME: &str = "aggregator_unavailable_apiservice";
    page.family(NAME, "APIServices that are known not to be available.", Kind::Gauge);
    for object in store.list(services(store), None).0 {
        let service = object.value();
        let available = conditions::is_true(&service, AVAILABLE);
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        page.sample(NAME, &[("name", name)], f64::from(u8::from(!available)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_kit::{metrics::Registry, prometheus::Format};

    use super::*;

    #[test]
    fn a_service_that_becomes_unavailable_is_counted_with_its_reason() {
        let service = |status: &str, reason: &str| {
            let condition = json!({"type": AVAILABLE, "status": status, "reason": reason});
            json!({"metadata": {"name": "v1.x.example"}, "status": {"conditions": [condition]}})
        };
        let (good, bad) = (service("True", "Local"), service("False", "FailedDiscoveryCheck"));
        let unset = json!({"metadata": {"name": "v1.y.example"}});
        let registry = Registry::default();
        let seen = registry.of::<Availability>();
        for (old, new) in [
            (None, &bad),
            (None, &good),
            (Some(&good), &bad),
            (Some(&bad), &bad),
            (Some(&bad), &good),
            (Some(&good), &good),
            (Some(&good), &unset),
        ] {
            seen.observe(old, new);
        }
        let page = registry.page(Format::Plain);
        let samples: Vec<&str> = page.lines().filter(|line| line.starts_with("aggregator_unavailable")).collect();
        let name = "aggregator_unavailable_apiservice_total";
        let wanted = [
            format!("{name}{{name=\"v1.x.example\",reason=\"FailedDiscoveryCheck\"}} 1"),
            format!("{name}{{name=\"v1.y.example\",reason=\"UnknownReason\"}} 1"),
        ];
        assert_eq!(samples, wanted, "{page}");
    }
}
