//! Calls one webhook for a request, and decides what a failure means.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::time::Instant;

use super::{
    configuration::Webhook,
    matching::Invocation,
    metrics::WebhookMetrics,
    review::{self, Answer},
};
use crate::{
    apiserver::{AdmissionAttributes, ApiError, Authorizers, generate::new_uid},
    store::Store,
    webhook::{CallError, ExtensionClients, MAX_REVIEW_BYTES},
};

/// What both kinds of webhooks are called with.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) store: Store,
    pub(crate) authorizers: Authorizers,
    pub(crate) clients: Arc<ExtensionClients>,
    pub(crate) metrics: Arc<WebhookMetrics>,
}

/// Why a webhook has not admitted a request.
#[derive(Debug)]
pub(super) enum Failure {
    /// It could not be asked, or its answer is none: its failure policy decides.
    Calling {
        why: String,
        code: u16,
        /// No endpoint of its Service is ready.
        is_unserved: bool,
    },
    /// It refuses, or nobody may ask it.
    Refused(ApiError),
}

impl Failure {
    fn invalid(why: impl std::fmt::Display) -> Self {
        Self::Calling { why: why.to_string(), code: 503, is_unserved: false }
    }
}

/// What parts of a node write so that it is known to be alive. A guard of everything whose own pod is not ready must not end
/// the node that would run it.
fn is_sign_of_life(attributes: &AdmissionAttributes<'_>) -> bool {
    let target = attributes.target;
    match target.subresource() {
        "" => {
            target.is("coordination.k8s.io", "leases")
                || target.is("", "events")
                || target.is("events.k8s.io", "events")
        }
        "status" => target.is("", "nodes") || target.is("", "pods"),
        _ => false,
    }
}

impl Caller {
    /// Asks a webhook.
    pub(super) async fn call(
        &self,
        attributes: &AdmissionAttributes<'_>,
        invocation: &Invocation,
        mutates: bool,
    ) -> Result<Answer, Failure> {
        let webhook = &invocation.webhook;
        if attributes.options.are_of_dry_run() && !webhook.has_no_side_effects {
            let why = format!("admission webhook {:?} does not support dry run", webhook.name);
            return Err(Failure::Refused(ApiError::bad_request(why)));
        }
        let unknown =
            "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        let version = webhook.review_version.ok_or_else(|| Failure::invalid(unknown))?;
        let client = webhook.client.as_ref();
        let client = client.map_err(|why| Failure::invalid(format!("could not get REST client: {why}")))?;
        let uid = new_uid().map_err(Failure::Refused)?;
        let review = review::request(&uid, version, attributes, invocation);
        let body = Bytes::from(review.to_string());
        let deadline = (Instant::now() + webhook.timeout).min(attributes.deadline);
        let asked = self.clients.post(client, body, MAX_REVIEW_BYTES, deadline).await;
        let body = asked.map_err(|error: CallError| Failure::Calling {
            why: format!("failed to call webhook: {error}"),
            code: error.code.unwrap_or(503),
            is_unserved: error.is_unserved,
        })?;
        let answer = review::answer(&body, &uid, version, mutates).map_err(Failure::invalid)?;
        for (key, value) in &answer.annotations {
            attributes.audit.annotate(&format!("{}/{key}", webhook.name), value.as_str());
        }
        attributes.warnings.extend(answer.warnings.iter().cloned());
        if answer.allowed {
            return Ok(answer);
        }
        Err(Failure::Refused(review::rejection(webhook, answer.status.as_ref())))
    }

    /// What a failure means for the request: an error refuses it.
    pub(super) fn settle(
        &self,
        attributes: &AdmissionAttributes<'_>,
        webhook: &Webhook,
        failure: Failure,
        failed_open: &str,
    ) -> Result<(), ApiError> {
        let (why, is_unserved) = match failure {
            Failure::Refused(error) => return Err(error),
            Failure::Calling { why, is_unserved, .. } => (why, is_unserved),
        };
        let (name, configuration) = (&webhook.name, &webhook.configuration);
        if webhook.ignores_failures {
            tracing::warn!(webhook = name, configuration, why, "failed to call webhook; its failures are ignored");
            attributes.audit.annotate(failed_open, name.as_str());
            return attributes.check_deadline();
        }
        if is_unserved && attributes.is_own_component && is_sign_of_life(attributes) {
            tracing::warn!(
                webhook = name,
                configuration,
                why,
                "no pod serves the webhook; this node's own report is admitted without it. If nothing else can be written, delete the configuration"
            );
            return Ok(());
        }
        Err(ApiError::internal(format!("failed calling webhook {name:?}: {why}")))
    }
}
