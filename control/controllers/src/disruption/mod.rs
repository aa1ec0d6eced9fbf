//! Disruption controller: counts the healthy pods of PodDisruptionBudgets, so that evictions know how many more may go; and
//! takes back what was announced to pods and did not happen (`stale`). Upstream's `pkg/controller/disruption`. `expected`,
//! `status` and `messages` are pure and may not import tokio or kube's client; `scale` asks caches and API.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
    objects::label_selector::Selector,
};

use super::{
    indexes::{PODS_BY_LABEL, selected},
    pods,
    runtime::{Cache, CachedPod, Context, Controller, Error, Key, Outcome, SelectorIndex, error},
};

mod expected;
mod messages;
mod scale;
mod stale;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use stale::StalePodDisruptionController;

use expected::{Expected, Owners, Uncountable};
use scale::Scales;

impl crate::runtime::Cached for PodDisruptionBudget {}

/// The controller.
pub(crate) struct DisruptionController {
    client: Client,
    budgets: Cache<PodDisruptionBudget>,
    pods: Cache<CachedPod>,
    scales: Scales,
    recorder: Recorder,
}

impl Controller for DisruptionController {
    const NAME: &'static str = "disruption-controller";
    const QUEUE: &'static str = "disruption";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (budgets, pods) = (context.informer::<PodDisruptionBudget>(), context.informer::<CachedPod>());
        pods.index(&PODS_BY_LABEL);
        let recorder = context.recorder("controllermanager");
        let selectors: Arc<Mutex<SelectorIndex>> = Arc::default();
        let (queue, index) = (context.queue(), Arc::clone(&selectors));
        budgets.on_change(move |old, new| {
            let Some(budget) = new.or(old) else { return };
            let key = Key::of(&budget.metadata);
            let mut index = index.lock();
            match new.and_then(|budget| selector_of(budget)) {
                Some(selector) if selector.is_empty() => index.set_all(&key),
                selector => index.set(&key, selector),
            }
            drop(index);
            queue.add(key);
        });
        let (queue, cache, events) = (context.queue(), budgets.cache(), recorder.clone());
        pods.on_change(move |old, new| {
            if let (Some(old), Some(new)) = (old, new)
                && counted(old) == counted(new)
            {
                return;
            }
            for pod in [old, new].into_iter().flatten() {
                let matching = budgets_of(&cache, &selectors, pod);
                if let ([first, _, ..], true) = (matching.as_slice(), new.is_some_and(|new| Arc::ptr_eq(new, pod))) {
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    let text = messages::multiple_budgets(&first.namespace, name, &first.name);
                    let reason = messages::MULTIPLE_POD_DISRUPTION_BUDGETS;
                    events.record(&object_ref::of(&**pod), Severity::Warning, reason, text);
                }
                matching.into_iter().for_each(|budget| queue.add(budget));
            }
        });
        let scales = Scales::subscribe(context);
        Self { client: context.client(), budgets: budgets.cache(), pods: pods.cache(), scales, recorder }
    }

    /// Reconciles one budget.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(budget) = self.budgets.get(&key) else { return Ok(Outcome::Done) };
        let pods = self.pods_of(&budget);
        if pods.is_empty() {
            self.record(&budget, Severity::Normal, messages::NO_PODS, messages::NO_MATCHING_PODS.to_owned());
        }
        let expected = match self.expected(&budget, &pods).await {
            Ok(expected) => expected,
            Err(error) => {
                let why = error.to_string();
                let reason = messages::CALCULATE_EXPECTED_POD_COUNT_FAILED;
                self.record(&budget, Severity::Warning, reason, messages::cannot_count(&why));
                self.write(&budget, &key, &status::failed(&budget, &why, Timestamp::now())).await?;
                return Ok(if error.may_pass() { Outcome::Failed } else { Outcome::Done });
            }
        };
        let plan = status::reconcile(&budget, &pods, expected, Timestamp::now());
        for pod in &plan.not_deleted {
            let text = messages::not_deleted(&key.namespace, &key.name);
            self.recorder.record(&object_ref::of(&**pod), Severity::Warning, messages::NOT_DELETED, text);
        }
        self.write(&budget, &key, &plan.status).await?;
        Ok(plan.recheck.map_or(Outcome::Done, Outcome::After))
    }
}

impl DisruptionController {
    /// The pods of a budget: none without a selector, and with an empty one all of its namespace.
    fn pods_of(&self, budget: &PodDisruptionBudget) -> Vec<Arc<CachedPod>> {
        let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
        match selector_of(budget) {
            None => Vec::new(),
            Some(selector) if selector.is_empty() => self.pods.in_namespace(namespace),
            Some(selector) => selected(&self.pods, namespace, selector),
        }
    }

    async fn expected(&self, budget: &PodDisruptionBudget, pods: &[Arc<CachedPod>]) -> Result<Expected, Uncountable> {
        let none = PodDisruptionBudgetSpec::default();
        let spec = budget.spec.as_ref().unwrap_or(&none);
        if !expected::is_part_of_scale(spec) {
            return expected::expected(spec, pods.len(), 0);
        }
        let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
        let Owners { controllers, unmanaged } = expected::owners(pods);
        let mut scales = Vec::with_capacity(controllers.len());
        for (owner, pod) in controllers {
            let scale = self.scales.of(namespace, owner).await?;
            scales.push(scale.ok_or_else(|| Uncountable::NoController(pod.to_owned()))?);
        }
        let expected = expected::expected(spec, pods.len(), expected::total(&scales))?;
        if unmanaged {
            let text = messages::unmanaged_pods(spec.selector.as_ref());
            self.record(budget, Severity::Warning, messages::UNMANAGED_PODS, text);
        }
        Ok(expected)
    }

    fn record(&self, budget: &PodDisruptionBudget, severity: Severity, reason: &str, message: String) {
        self.recorder.record(&object_ref::of(budget), severity, reason, message);
    }

    /// Writes a status to the version of a budget that it was made of: evictions write there too.
    async fn write(
        &self,
        budget: &PodDisruptionBudget,
        key: &Key,
        status: &PodDisruptionBudgetStatus,
    ) -> Result<(), Error> {
        let Some(patch) = status::patch(budget, status) else { return Ok(()) };
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
        error::of_seen(
            api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await,
            "update the status of",
            key,
        )
        .map(drop)
    }
}

fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector<'_>> {
    budget.spec.as_ref()?.selector.as_ref().map(Selector::from)
}

/// What budgets count of a pod, by which it is found.
fn counted(pod: &CachedPod) -> (Option<&BTreeMap<String, String>>, Option<&str>, bool, bool) {
    let meta = &pod.metadata;
    let owner = pods::controller_of(meta).map(|owner| owner.uid.as_str());
    (meta.labels.as_ref(), owner, meta.deletion_timestamp.is_some(), pods::is_ready(pod))
}

/// The budgets that select a pod, ordered by name.
fn budgets_of(budgets: &Cache<PodDisruptionBudget>, selectors: &Mutex<SelectorIndex>, pod: &CachedPod) -> Vec<Key> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let labels = pod.metadata.labels.as_ref();
    let mut found = selectors.lock().candidates(namespace, labels);
    found.retain(|key| {
        let budget = budgets.get(key);
        budget.is_some_and(|budget| selector_of(&budget).is_some_and(|selector| selector.matches(labels)))
    });
    found
}
