//! The one way in which controllers and the scheduler end a pod that they do not own: the phase and the DisruptionTarget condition say why,
//! each with the generation that was seen, and then exactly this pod is deleted. What was left out would be missed by
//! others: a Job counts a pod by its phase, and matches its failure policy with the condition.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Why a pod is disrupted: reason and message of its condition.
pub type Why<'a> = (&'static str, &'a str);

/// A pod, as far as its terminator knows it.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub generation: Option<i64>,
    /// It has succeeded or failed.
    pub is_terminal: bool,
    /// Its DisruptionTarget condition.
    pub condition: Option<&'a PodCondition>,
}

/// What could not be done, such as `delete pod`, and why.
#[derive(Debug)]
pub struct Failed {
    pub action: &'static str,
    pub source: kube::Error,
}

/// How a pod ends.
#[derive(Debug)]
pub struct Ending<'a> {
    condition: Option<Why<'a>>,
    /// Its node does not run it: its failure must be reported on the node's behalf, without waiting for it.
    forced: bool,
}

impl<'a> Ending<'a> {
    /// By its node, within its own grace period.
    pub const fn evicted(why: Why<'a>) -> Self {
        Self { condition: Some(why), forced: false }
    }

    /// At once: it has no node that runs it, or it has ended already.
    pub const fn forced(why: Option<Why<'a>>) -> Self {
        Self { condition: why, forced: true }
    }

    /// Ends a pod; returns whether it was this that deleted it, and not somebody else before.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn end(&self, client: &Client, pod: &Target<'_>) -> Result<bool, Failed> {
        let api: Api<Pod> = Api::namespaced(client.clone(), pod.namespace);
        if let Some(patch) = self.patch(pod, Timestamp::now()) {
            let written = api.patch_status(pod.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            match written {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(false),
                Err(source) => return Err(Failed { action: "say why it ends in the status of pod", source }),
            }
        }
        let preconditions = Preconditions { uid: Some(pod.uid.to_owned()), resource_version: None };
        let params = DeleteParams::default().preconditions(preconditions);
        let params = if self.forced { params.grace_period(0) } else { params };
        match api.delete(pod.name, &params).await {
            Ok(_) => Ok(true),
            // The pod is gone, or was replaced by another one of its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
            Err(source) => Err(Failed { action: "delete pod", source }),
        }
    }

    /// The strategic patch of the status, if it has to say more. Pure.
    fn patch(&self, pod: &Target<'_>, now: Timestamp) -> Option<Value> {
        let fails = self.forced && !pod.is_terminal;
        // As upstream: a terminal pod gets no further condition when it is garbage collected.
        let condition = self.condition.filter(|_| fails || !self.forced);
        let condition = condition.and_then(|why| disrupted(pod, why, now));
        if !fails && condition.is_none() {
            return None;
        }
        let mut status = json!({});
        if fails {
            status["phase"] = json!("Failed");
            status["observedGeneration"] = json!(pod.generation);
        }
        if let Some(condition) = condition {
            status["conditions"] = json!([condition]);
        }
        Some(json!({"metadata": {"uid": pod.uid}, "status": status}))
    }
}

/// The DisruptionTarget condition of a pod, unless it has just this one. Upstream's `UpdatePodCondition`.
fn disrupted(pod: &Target<'_>, (reason, message): Why<'_>, now: Timestamp) -> Option<Value> {
    let known = pod.condition.filter(|known| known.status == "True");
    let since = known.and_then(|known| known.last_transition_time.clone()).unwrap_or(Time(now));
    let same = |known: &k8s_openapi::api::core::v1::PodCondition| {
        known.reason.as_deref() == Some(reason)
            && known.message.as_deref() == Some(message)
            && known.observed_generation == pod.generation
    };
    (!known.is_some_and(same)).then(|| {
        json!({
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
            "observedGeneration": pod.generation,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: Why<'_> = ("DeletionByPodGC", "PodGC: node no longer exists");

    /// The patch of a pod with this status.
    fn patch(ending: &Ending<'_>, status: &Value, now: Timestamp) -> Option<Value> {
        let condition: Option<PodCondition> =
            status["conditions"].as_array().map(|all| serde_json::from_value(all[0].clone()).unwrap());
        let pod = Target {
            namespace: "n",
            name: "p",
            uid: "u",
            generation: Some(3),
            is_terminal: matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")),
            condition: condition.as_ref(),
        };
        ending.patch(&pod, now)
    }

    #[test]
    fn a_pod_that_nobody_runs_fails_before_it_is_deleted() {
        let failed = patch(&Ending::forced(None), &json!({"phase": "Pending"}), Timestamp::UNIX_EPOCH);
        // Without a condition, as a pod that was never scheduled; a Job counts its phase.
        let expected = json!({"metadata": {"uid": "u"}, "status": {"phase": "Failed", "observedGeneration": 3}});
        assert_eq!(failed, Some(expected));
        for ended in ["Succeeded", "Failed"] {
            let status = json!({"phase": ended});
            assert_eq!(patch(&Ending::forced(Some(WHY)), &status, Timestamp::UNIX_EPOCH), None);
        }
    }

    #[test]
    fn a_condition_says_which_generation_it_is_about_and_since_when() {
        let of = |status: Value, now| patch(&Ending::evicted(WHY), &status, Timestamp::from_second(now).unwrap());
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
