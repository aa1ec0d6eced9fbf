//! ValidatingAdmissionWebhook: all webhooks at a time; the first that refuses is who has refused.

use std::time::Instant;

use async_trait::async_trait;
use futures::future::join_all;
use serde_json::Value;

use super::{
    caller::Caller,
    configuration::{Configurations, Validating},
    matching::{Invocation, Matched, is_exempt},
    metrics::Ending,
    not_ready,
};
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    plugin::synced::Synced,
};

/// The plugin.
#[derive(Debug)]
pub(crate) struct ValidatingAdmissionWebhook {
    configurations: Synced<Configurations<Validating>>,
    caller: Caller,
}

impl ValidatingAdmissionWebhook {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { configurations: Synced::new(caller.store.clone()), caller }
    }
}

#[async_trait]
impl AdmissionPlugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        if is_exempt(attributes) {
            return Ok(());
        }
        let webhooks = self.configurations.read(Configurations::webhooks).ok_or_else(not_ready)?;
        let webhooks = webhooks.map_err(ApiError::internal)?;
        if webhooks.is_empty() {
            return Ok(());
        }
        let invocations = {
            let matched = Matched::new(attributes, object);
            let found = webhooks.iter().filter_map(|webhook| matched.invocation(&self.caller, webhook).transpose());
            found.collect::<Result<Vec<Invocation>, ApiError>>()?
        };
        if invocations.is_empty() {
            return Ok(());
        }
        self.caller.check_deadline(attributes)?;
        let calls = invocations.iter().enumerate().map(|(index, one)| self.ask(attributes, one, object, index));
        join_all(calls).await.into_iter().collect()
    }
}

impl ValidatingAdmissionWebhook {
    async fn ask(
        &self,
        attributes: &AdmissionAttributes<'_>,
        invocation: &Invocation,
        object: &Value,
        index: usize,
    ) -> Result<(), ApiError> {
        let (webhook, started) = (&invocation.webhook, Instant::now());
        let shown = Matched::new(attributes, object).shown(&invocation.version)?;
        let outcome = self.caller.call(attributes, invocation, &shown, false).await;
        let ending = Ending::of(&outcome, webhook);
        self.caller.metrics.called(&webhook.name, "validating", attributes.operation, ending, started.elapsed());
        let Err(failure) = outcome else { return Ok(()) };
        let failed_open = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
        self.caller.settle(attributes, webhook, failure, &failed_open)
    }
}
