//! Services and EndpointSlices with any content: their rules are a valid rule set, and the kernel accepts every chain
//! name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use windlass_proxy::{Config, iptables_save::SavedRuleset, model::{Family, objects::{EndpointSlice, Service}}, rules_from_objects};

fuzz_target!(|text: &str| {
    let Ok(documents) = serde_saphyr::from_multiple::<Value>(text) else { return };
    let (mut services, mut slices) = (Vec::<Service>::new(), Vec::<EndpointSlice>::new());
    for document in documents {
        services.extend(serde_json::from_value(document.clone()));
        slices.extend(serde_json::from_value(document));
    }
    for family in Family::BOTH {
        let rules = rules_from_objects(&services, &slices, &[], &Config::default(), family);
        let saved = SavedRuleset::parse(&rules).unwrap_or_else(|e| panic!("{e}\n{rules}"));
        assert_eq!(saved.tables.len(), 2, "{rules}");
        for name in saved.tables.values().flat_map(|t| t.keys()) {
            assert!(name.len() <= 28 && name.starts_with("KUBE-"), "{name}\n{rules}");
        }
    }
});
