//! What `/metrics` of the API shows of the control plane as a whole, under upstream's names.

use windlass_kit::{
    build_info, process_metrics,
    prometheus::{Kind, Text},
    rest_client,
};

use crate::{apiserver::Api, store::Store};

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

/// Upstream's aggregator tells of every APIService.
fn api_services(page: &mut Text, store: &Store) {
    const NAME: &str = "aggregator_unavailable_apiservice";
    page.family(NAME, "APIServices that are known not to be available.", Kind::Gauge);
    for object in store.list(store.resource("apiservices.apiregistration.k8s.io"), None).0 {
        let service = object.value();
        let conditions = service["status"]["conditions"].as_array().into_iter().flatten();
        let available = conditions.into_iter().any(|c| c["type"] == "Available" && c["status"] == "True");
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        page.sample(NAME, &[("name", name)], f64::from(u8::from(!available)));
    }
}
