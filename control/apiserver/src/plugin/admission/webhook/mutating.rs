//! MutatingAdmissionWebhook: webhooks one after the other, each of which sees what those before it have made of the object.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use windlass_apimachinery::{managed_fields::Managers, patch};

use super::{
    caller::{Caller, Failure},
    configuration::{Configurations, Webhook, webhooks_for},
    matching::{Invocation, Matched, convert},
    metrics::Ending,
};
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, AuditLevel, Operation, Target, default},
    kinds::types,
    plugin::store_view::StoreView,
};

const NAME: &str = "MutatingAdmissionWebhook";

/// The plugin.
#[derive(Debug)]
pub(crate) struct MutatingAdmissionWebhook {
    configurations: StoreView<Configurations<true>>,
    caller: Caller,
}

impl MutatingAdmissionWebhook {
    pub(crate) fn new(caller: Caller) -> Self {
        Self { configurations: StoreView::new(caller.store.clone()), caller }
    }
}

#[async_trait]
impl AdmissionPlugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let webhooks = webhooks_for(&self.configurations, attributes)?;
        if webhooks.is_empty() {
            return Ok(());
        }
        attributes.reinvocation.begin(NAME, object);
        for (index, webhook) in webhooks.iter().enumerate() {
            let invocation = Matched::new(attributes, object).invocation(&self.caller, webhook).await?;
            let Some(invocation) = invocation else { continue };
            if attributes.reinvocation.has_turn(NAME, &webhook.id) {
                self.ask(attributes, &invocation, object, index).await?;
            }
        }
        attributes.reinvocation.end(NAME, object);
        Ok(())
    }
}

impl MutatingAdmissionWebhook {
    async fn ask(
        &self,
        attributes: &AdmissionAttributes<'_>,
        invocation: &Invocation,
        object: &mut Value,
        index: usize,
    ) -> Result<(), ApiError> {
        let (webhook, started) = (&invocation.webhook, Instant::now());
        let place = format!("round_{}_index_{index}", attributes.reinvocation.round());
        let outcome = self.mutate(attributes, invocation, object, &place).await;
        let changed = *outcome.as_ref().unwrap_or(&false);
        attributes.audit.annotate_with(&format!("mutation.webhook.admission.k8s.io/{place}"), || {
            let Webhook { configuration, name, .. } = &**webhook;
            json!({"configuration": configuration, "webhook": name, "mutated": changed}).to_string()
        });
        attributes.reinvocation.called(NAME, &webhook.id, webhook.is_reinvoked, changed);
        let ending = Ending::of(&outcome, webhook);
        self.caller.metrics.called(&webhook.name, "admit", attributes.operation, ending, started.elapsed());
        let Err(failure) = outcome else { return Ok(()) };
        self.caller.settle(
            attributes,
            webhook,
            failure,
            &format!("failed-open.mutation.webhook.admission.k8s.io/{place}"),
        )
    }

    /// Asks a webhook and applies its patch; whether that has changed something.
    async fn mutate(
        &self,
        attributes: &AdmissionAttributes<'_>,
        invocation: &Invocation,
        object: &mut Value,
        place: &str,
    ) -> Result<bool, Failure> {
        let (webhook, target) = (&invocation.webhook, attributes.target);
        let answer = self.caller.call(attributes, invocation, true).await?;
        if answer.patch.is_empty() {
            return Ok(false);
        }
        if object.is_null() {
            let why = "attempted to modify the object, which is not supported for this operation";
            return Err(internal(format!("admission webhook {:?} {why}", webhook.name)));
        }
        let operations = Value::Array(answer.patch);
        let patched = patch::json(&invocation.shown.object, &operations).map_err(|error| internal(error.reason()))?;
        let patched = convert(&patched, target, &invocation.version, &target.version).await;
        let mut patched = patched.map_err(Failure::Refused)?;
        complete(target, &mut patched).map_err(internal)?;
        keep_managers(attributes, object, &mut patched);
        attributes.audit.annotate_at(AuditLevel::Request, &format!("patch.webhook.admission.k8s.io/{place}"), || {
            let Webhook { configuration, name, .. } = &**webhook;
            json!({"configuration": configuration, "webhook": name, "patch": operations, "patchType": "JSONPatch"})
                .to_string()
        });
        let changed = patched != *object;
        *object = patched;
        Ok(changed)
    }
}

fn internal(why: impl std::fmt::Display) -> Failure {
    Failure::Refused(ApiError::internal(why))
}

/// Decodes a patched object as its type, and fills in defaults.
pub(in crate::plugin::admission) fn complete(target: &Target, object: &mut Value) -> Result<(), String> {
    let version = &target.version;
    let Some(kind) = target.served().and_then(|served| served.kind.as_ref()) else {
        version.spec.schema.check_decodable(object)?;
        default(version, object);
        return Ok(());
    };
    let schema = types::built_in(&kind.api_version(), &kind.kind);
    schema.check_decodable(object)?;
    schema.prune(object);
    Ok(())
}

/// Keeps the owners of fields that were there, where a webhook has left some that nobody can read. Upstream:
/// `NewManagedFieldsValidatingAdmissionController`.
pub(in crate::plugin::admission) fn keep_managers(
    attributes: &AdmissionAttributes<'_>,
    before: &Value,
    after: &mut Value,
) {
    let (old, new) = (&before["metadata"]["managedFields"], &after["metadata"]["managedFields"]);
    if old == new {
        return;
    }
    let Err(error) = Managers::decode(new) else { return };
    let why =
        "was in an invalid state after admission; this could be caused by an outdated mutating admission controller";
    attributes.warnings.add(format!(".metadata.managedFields {why}; please fix your requests: {error}"));
    match before["metadata"].get("managedFields") {
        Some(old) => after["metadata"]["managedFields"] = old.clone(),
        None => drop(after["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"))),
    }
}

impl Ending {
    pub(super) fn of<T>(outcome: &Result<T, Failure>, webhook: &Arc<Webhook>) -> Self {
        match outcome {
            Ok(_) => Self::Admitted,
            Err(Failure::Refused(error)) => Self::Refused(error.code),
            Err(Failure::Calling { code, .. }) if webhook.ignores_failures => Self::FailedOpen(*code),
            Err(Failure::Calling { code, .. }) => Self::FailedClosed(*code),
        }
    }
}
