//! ValidatingAdmissionWebhook: all webhooks at a time; the first that refuses is who has refused.

use std::time::Instant;

use async_trait::async_trait;
use futures::future::join_all;
use serde_json::Value;

use super::{
    caller::Caller,
    configuration::{Configurations, webhooks_for},
    matching::{Invocation, Matched},
    metrics::Ending,
};
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    plugin::store_view::StoreView,
};

/// The plugin.
#[derive(Debug)]
pub(crate) struct ValidatingAdmissionWebhook {
    configurations: StoreView<Configurations<false>>,
    caller: Caller,
}

impl ValidatingAdmissionWebhook {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { configurations: StoreView::new(caller.store.clone()), caller }
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
        let webhooks = webhooks_for(&self.configurations, attributes)?;
        if webhooks.is_empty() {
            return Ok(());
        }
        let matched = Matched::new(attributes, object);
        let mut invocations = Vec::new();
        for webhook in webhooks.iter() {
            invocations.extend(matched.invocation(&self.caller, webhook).await?);
        }
        if invocations.is_empty() {
            return Ok(());
        }
        attributes.check_deadline()?;
        let calls = invocations.iter().enumerate().map(|(index, one)| self.ask(attributes, one, index));
        join_all(calls).await.into_iter().collect()
    }
}

impl ValidatingAdmissionWebhook {
    async fn ask(
        &self,
        attributes: &AdmissionAttributes<'_>,
        invocation: &Invocation,
        index: usize,
    ) -> Result<(), ApiError> {
        let (webhook, started) = (&invocation.webhook, Instant::now());
        let outcome = self.caller.call(attributes, invocation, false).await;
        let ending = Ending::of(&outcome, webhook);
        self.caller.metrics.called(&webhook.name, "validating", attributes.operation, ending, started.elapsed());
        let Err(failure) = outcome else { return Ok(()) };
        let failed_open = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
        self.caller.settle(attributes, webhook, failure, &failed_open)
    }
}
