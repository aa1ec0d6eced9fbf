//! Metrics of claims of devices, by upstream's names (`pkg/controller/resourceclaim/metrics`).

use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use windlass_kit::{
    metrics::{Counter, Metrics},
    prometheus::Text,
};

use super::plan::{POD_CLAIM_NAME, has_admin_access, is_allocated};
use crate::{gauges::counted, runtime::Cache};

/// Marks claims that a scheduler has made for extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

pub(super) struct ClaimMetrics {
    made: Counter<2>,
    claims: Mutex<Option<Cache<ResourceClaim>>>,
}

impl Default for ClaimMetrics {
    fn default() -> Self {
        let (name, help) = ("resourceclaim_controller_creates_total", "Claims that were to be made from templates.");
        Self { made: Counter::new(name, help, ["status", "admin_access"]), claims: Mutex::default() }
    }
}

impl ClaimMetrics {
    /// Counts what this cache holds from now on.
    pub(super) fn show(&self, claims: Cache<ResourceClaim>) {
        *self.claims.lock() = Some(claims);
    }

    pub(super) fn made(&self, claim: &ResourceClaim, status: &str) {
        self.made.add([status, yes(has_admin_access(claim))]);
    }
}

fn yes(is: bool) -> &'static str {
    if is { "true" } else { "false" }
}

/// What a claim was made for.
fn source(claim: &ResourceClaim) -> &'static str {
    let has = |key: &str, is: fn(&str) -> bool| {
        claim.metadata.annotations.as_ref().and_then(|all| all.get(key)).is_some_and(|value| is(value))
    };
    if has(EXTENDED, |value| value == "true") {
        "extended_resource"
    } else if has(POD_CLAIM_NAME, |value| !value.is_empty()) {
        "resource_claim_template"
    } else {
        ""
    }
}

impl Metrics for ClaimMetrics {
    fn write(&self, page: &mut Text) {
        self.made.write(page);
        let claims = self.claims.lock().as_ref().map(Cache::shown);
        let claims = claims.unwrap_or_default();
        let labels = claims.iter().map(|claim| {
            let label = |text: &str| text.to_owned();
            vec![label(yes(is_allocated(claim))), label(yes(has_admin_access(claim))), label(source(claim))]
        });
        let (name, help) = ("resourceclaim_controller_resource_claims", "Claims.");
        counted(page, name, help, ["allocated", "admin_access", "source"], labels);
    }
}
