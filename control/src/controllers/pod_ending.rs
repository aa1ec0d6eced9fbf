//! The one way in which a controller ends a pod that it does not own: the phase and the DisruptionTarget condition say why,
//! each with the generation that was seen, and then exactly this pod is deleted. What was left out would be missed by
//! others: a Job counts a pod by its phase, and matches its failure policy with the condition.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    pods,
    runtime::{CachedPod, During as _, Error, Key, Proof, error, same_object},
};

pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Why a pod is disrupted: reason and message of its condition.
pub(super) type Why = (&'static str, &'static str);

/// How a pod ends.
#[derive(Debug)]
pub(super) struct Ending {
    condition: Option<Why>,
    /// Its node does not run it: somebody else has to say that it has failed, and nobody is waited for.
    forced: bool,
}

impl Ending {
    /// By its node, within its own grace period.
    pub(super) const fn evicted(why: Why) -> Self {
        Self { condition: Some(why), forced: false }
    }

    /// At once: it has no node that runs it, or it has ended already.
    pub(super) const fn forced(why: Option<Why>) -> Self {
        Self { condition: why, forced: true }
    }

    /// At once, since the API knows its node no more.
    pub(super) const fn without_node(why: Why, _: &Proof) -> Self {
        Self::forced(Some(why))
    }

    /// Ends a pod; returns whether it was this that deleted it.
    ///
    /// # Errors
    /// When the API refuses.
    pub(super) async fn end(&self, client: &Client, pod: &CachedPod) -> Result<bool, Error> {
        let key = Key::of(&pod.metadata);
        let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
        if let Some(patch) = self.patch(pod, Timestamp::now()) {
            let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            error::ignore_deleted(written).during("say why it ends in the status of pod", &key)?;
        }
        let params = DeleteParams::default().preconditions(same_object(&pod.metadata));
        let params = if self.forced { params.grace_period(0) } else { params };
        let deleted = error::ignore_deleted(api.delete(&key.name, &params).await).during("delete pod", &key)?;
        Ok(deleted.is_some())
    }

    /// The strategic patch of the status, if it has to say more. Pure.
    fn patch(&self, pod: &CachedPod, now: Timestamp) -> Option<Value> {
        let fails = self.forced && !pods::is_terminal(pod);
        // As upstream: of a pod that has ended, nothing is told any more when it is collected.
        let condition = self.condition.filter(|_| fails || !self.forced);
        let condition = condition.and_then(|why| disrupted(pod, why, now));
        if !fails && condition.is_none() {
            return None;
        }
        let mut status = json!({});
        if fails {
            status["phase"] = json!("Failed");
            status["observedGeneration"] = json!(pod.metadata.generation);
        }
        if let Some(condition) = condition {
            status["conditions"] = json!([condition]);
        }
        Some(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}))
    }
}

/// The DisruptionTarget condition of a pod, unless it has just this one. Upstream's `UpdatePodCondition`.
fn disrupted(pod: &CachedPod, (reason, message): Why, now: Timestamp) -> Option<Value> {
    let known = pods::condition(pod, DISRUPTION_TARGET).filter(|known| known.status == "True");
    let since = known.and_then(|known| known.last_transition_time.clone()).unwrap_or(Time(now));
    let same = |known: &k8s_openapi::api::core::v1::PodCondition| {
        known.reason.as_deref() == Some(reason)
            && known.message.as_deref() == Some(message)
            && known.observed_generation == pod.metadata.generation
    };
    (!known.is_some_and(same)).then(|| {
        json!({
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
            "observedGeneration": pod.metadata.generation,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: Why = ("DeletionByPodGC", "PodGC: node no longer exists");

    fn pod(status: &Value) -> CachedPod {
        let pod = json!({"metadata": {"name": "p", "uid": "u", "generation": 3}, "spec": {"containers": []}, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_that_nobody_runs_fails_before_it_is_deleted() {
        let patch = Ending::forced(None).patch(&pod(&json!({"phase": "Pending"})), Timestamp::UNIX_EPOCH);
        // Without a condition, as a pod that was never scheduled; a Job counts its phase.
        let expected = json!({"metadata": {"uid": "u"}, "status": {"phase": "Failed", "observedGeneration": 3}});
        assert_eq!(patch, Some(expected));
        for ended in ["Succeeded", "Failed"] {
            let pod = pod(&json!({"phase": ended}));
            assert_eq!(Ending::forced(Some(WHY)).patch(&pod, Timestamp::UNIX_EPOCH), None);
        }
    }

    #[test]
    fn a_condition_says_which_generation_it_is_about_and_since_when() {
        let of = |status: Value, now| Ending::evicted(WHY).patch(&pod(&status), Timestamp::from_second(now).unwrap());
        let new = of(json!({"phase": "Running"}), 60).unwrap();
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": WHY.0, "message": WHY.1,
            "lastTransitionTime": "1970-01-01T00:01:00Z", "observedGeneration": 3});
        assert_eq!(new, json!({"metadata": {"uid": "u"}, "status": {"conditions": [condition]}}));
        let known = |change: &dyn Fn(&mut Value)| {
            let mut condition = condition.clone();
            change(&mut condition);
            json!({"phase": "Running", "conditions": [condition]})
        };
        assert_eq!(of(known(&|_| {}), 90), None, "it is said already");
        let other = of(known(&|condition| condition["reason"] = json!("EvictionByEvictionAPI")), 90).unwrap();
        assert_eq!(other["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:01:00Z");
        let again = of(known(&|condition| condition["status"] = json!("False")), 90).unwrap();
        assert_eq!(again["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:01:30Z");
    }
}
