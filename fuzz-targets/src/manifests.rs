//! Services and EndpointSlices with any content: their rules are a valid rule set, and the kernel accepts every chain
//! name.

use serde_json::Value;
use windlass_proxy::{
    Config, Objects,
    iptables_save::SavedRuleset,
    model::{
        Family,
        objects::{EndpointSlice, Service, ServiceCidr},
    },
    rules_from_objects,
};

pub(crate) fn run(text: &str) {
    let Ok(documents) = serde_saphyr::from_multiple::<Value>(text) else { return };
    let mut objects = Objects::default();
    for document in documents {
        objects.services.extend(serde_json::from_value::<Service>(document.clone()));
        objects.slices.extend(serde_json::from_value::<EndpointSlice>(document.clone()));
        objects.service_cidrs.extend(serde_json::from_value::<ServiceCidr>(document));
    }
    for family in Family::BOTH {
        let rules = rules_from_objects(&objects, &Config { cluster_ips_check: true, ..Config::default() }, family);
        let saved = SavedRuleset::parse(&rules).unwrap_or_else(|e| panic!("{e}\n{rules}"));
        assert_eq!(saved.tables.len(), 2, "{rules}");
        for name in saved.tables.values().flat_map(|t| t.keys()) {
            assert!(name.len() <= 28 && name.starts_with("KUBE-"), "{name}\n{rules}");
        }
    }
}
