//! `eviction`: the deletion of a pod that its disruption budget allows, with a DisruptionTarget condition. `budget` decides
//! and is pure. Upstream's `pkg/registry/core/pod/storage/eviction.go`.

use async_trait::async_trait;
use axum::body::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, DeleteOptions, Draft, Mutated, RequestOptions, Target, WriteOptions,
        generate::now, handlers::subresource::SubresourceHandler, pipeline::validation::errors::Errors, types::Gvk,
    },
    kinds::shared::{conditions, posted},
    store::{Change, Companion, Key, Object, ResourceId},
};

mod budget;
#[cfg(test)]
mod tests;

use budget::{Ground, Refusal};

const EVICTION: Gvk = Gvk::of("policy", "v1", "Eviction");
/// An option of deletions that evictions do not have.
const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
/// How often an eviction is tried whose pod changes meanwhile. Upstream's `EvictionsRetry`.
const EVICTION_ATTEMPTS: usize = 20;

/// Deletes a pod with the options of an Eviction.
#[derive(Debug)]
pub(super) struct Evict;

#[async_trait]
impl SubresourceHandler for Evict {
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        let eviction = posted::read(request, target, &EVICTION, options, body)?;
        let given = eviction["deleteOptions"].clone();
        if eviction["metadata"]["name"] != target.name() {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        if given[IGNORE_READ_ERROR] == true {
            let why = "can not be set for pod eviction, try after removing the option";
            let mut errors = Errors::default();
            errors.invalid(format!("deleteOptions.{IGNORE_READ_ERROR}"), &json!(true), why);
            return Err(ApiError::invalid_of("Eviction.policy", target.name(), &errors.0));
        }
        request.admit_posted(target, options, eviction, Some(&request.read(target)?)).await?;
        let delete_options = DeleteOptions::read(request.api.delete_options_schema(), options, &given)?;
        Evicting { request, pod: target.whole(), budgets: budgets(request)?, options: delete_options }.evict().await?;
        Ok(posted::done(request))
    }
}

fn budgets(request: &ApiRequest) -> Result<ResourceId, ApiError> {
    let catalog = request.api.catalogs().current();
    let budgets = catalog.find("policy", "v1", "poddisruptionbudgets").and_then(|version| version.id());
    budgets.ok_or_else(|| ApiError::internal("poddisruptionbudgets are not served"))
}

/// An eviction under way.
struct Evicting<'a> {
    request: &'a ApiRequest,
    pod: Target,
    budgets: ResourceId,
    options: DeleteOptions,
}

impl Evicting<'_> {
    async fn evict(&self) -> Result<(), ApiError> {
        for _ in 0..EVICTION_ATTEMPTS {
            let mut options = self.options.clone();
            let ground = if options.dry_run { self.dry_run()? } else { self.mark(&mut options).await? };
            match self.request.remove_admitted(&self.pod, &options).await {
                Err(error) if error.is_conflict() && self.options.revision.is_empty() => match ground {
                    // It may have begun to run.
                    Ground::Pending => {}
                    // It may have become ready.
                    Ground::Unready { budget } => return Err(Refusal::BeingProcessed { budget }.into()),
                    _ => return Err(error),
                },
                removed => return removed.map(drop),
            }
        }
        Err(ApiError::modified(&self.pod.version, self.pod.name()))
    }

    fn dry_run(&self) -> Result<Ground, ApiError> {
        let pod = self.request.read(&self.pod)?;
        let ground = self.ground(&pod)?;
        self.options.check(&self.pod.version, self.pod.name(), &pod)?;
        Ok(ground)
    }

    /// Sets the DisruptionTarget condition, in a write of its own as upstream; a disruption that the eviction spends is
    /// counted in the same transaction, so that of two evictions no one spends what the other has. `options` then name
    /// the revision that may be deleted, where it matters.
    async fn mark(&self, options: &mut DeleteOptions) -> Result<Ground, ApiError> {
        let decided = Mutex::new(Ground::Unprotected);
        let make = |old: &Value| {
            let ground = self.ground(old)?;
            self.options.check(&self.pod.version, self.pod.name(), old)?;
            let companions = match &ground {
                Ground::Spends { budget } => vec![self.spending(budget)],
                _ => Vec::new(),
            };
            *decided.lock() = ground;
            let mut pod = old.clone();
            let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
            conditions::set(&mut pod, "DisruptionTarget", "True", reason, message, &now());
            Ok(Draft::WriteWith(pod, companions))
        };
        let written = posted::change(self.request, &self.pod, WriteOptions::None, &make).await?;
        let ground = decided.into_inner();
        let only_as_seen = matches!(ground, Ground::Pending | Ground::Unready { .. });
        options.revision = match written {
            Mutated::Stored(pod) if only_as_seen || !options.revision.is_empty() => pod.revision.to_string(),
            _ => String::new(),
        };
        Ok(ground)
    }

    fn ground(&self, pod: &Value) -> Result<Ground, ApiError> {
        if let Some(ground) = budget::without_budget(pod) {
            return Ok(ground);
        }
        let (budgets, _) = self.request.store().list(self.budgets, self.pod.namespace.as_deref());
        let budgets: Result<Vec<PodDisruptionBudget>, ApiError> = budgets.iter().map(|object| read(object)).collect();
        Ok(budget::ground(pod, &budgets?, Timestamp::now())?)
    }

    /// Counts the eviction in a budget as it is then.
    fn spending(&self, budget: &str) -> Companion {
        let pod = self.pod.name().to_owned();
        let decide = move |stored: Option<&Object>| {
            let spent = stored.and_then(|stored| {
                let status = budget::spend(&read(stored).ok()?, &pod, Timestamp::now()).ok()?;
                let mut budget = stored.value();
                budget["status"] = json!(status);
                Some(budget)
            });
            // What has changed is looked at again, and then says why.
            spent.map_or(Change::Refuse, Change::Put)
        };
        let key = Key { namespace: self.pod.namespace.clone().unwrap_or_default(), name: budget.to_owned() };
        Companion { resource: self.budgets, key, decide: Box::new(decide) }
    }
}

fn read(object: &Object) -> Result<PodDisruptionBudget, ApiError> {
    let name = &object.key.name;
    serde_json::from_value(object.value())
        .map_err(|why| ApiError::internal(format!("PodDisruptionBudget {name:?} cannot be read: {why}")))
}
