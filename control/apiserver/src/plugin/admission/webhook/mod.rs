//! Admission webhooks: programs that change or refuse what is written, asked in the order of their configurations.
//!
//! `configuration` has them as they are called, `matching` says for which requests (by the `predicates` that policies have too),
//! `review` what they are sent and answer (all pure but for the store that selectors of namespaces need); `caller` asks one and
//! `mutating` and `validating` ask all.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook`.

mod caller;
mod configuration;
pub(crate) mod matching;
mod metrics;
pub(super) mod mutating;
pub(super) mod review;
mod validating;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use caller::Caller;
pub(crate) use metrics::WebhookMetrics;
pub(super) use mutating::MutatingAdmissionWebhook;
pub(super) use validating::ValidatingAdmissionWebhook;
