use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::budget::{Ground, Refusal, ground, spend};
use crate::apiserver::ApiError;

fn now() -> Timestamp {
    Timestamp::from_second(1000).unwrap()
}

fn pod(phase: &str, ready: &str) -> Value {
    json!({"metadata": {"name": "p", "labels": {"app": "web"}},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}})
}

/// A budget of generation 2 that selects the pod.
fn budget(name: &str, spec: &Value, status: &Value) -> PodDisruptionBudget {
    let mut all = json!({"metadata": {"name": name, "generation": 2},
        "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"observedGeneration": 2}});
    json_patch::merge(&mut all, &json!({"spec": spec, "status": status}));
    serde_json::from_value(all).unwrap()
}

fn counts(allowed: i32, healthy: i32, desired: i32) -> Value {
    json!({"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired})
}

fn condition(is: &str, reason: &str, message: &str) -> Value {
    json!({"conditions": [{"type": "DisruptionAllowed", "status": is, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

fn exhausted(why: &str) -> Result<Ground, Refusal> {
    Err(Refusal::Exhausted { why: why.to_owned() })
}

#[test]
fn grounds() {
    let none = json!({});
    let spends = || Ok(Ground::Spends { budget: "b".to_owned() });
    let unready = || Ok(Ground::Unready { budget: "b".to_owned() });
    let allows = budget("b", &none, &counts(1, 3, 2));
    let refuses = budget("b", &none, &counts(0, 2, 2));
    let broken = budget("b", &none, &counts(0, 1, 2));
    let not_allowed = "The disruption budget b needs 2 healthy pods and has 2 currently";
    for (pod, budgets, result) in [
        (pod("Running", "True"), vec![], Ok(Ground::Unprotected)),
        (pod("Running", "True"), vec![allows.clone()], spends()),
        (pod("Running", "True"), vec![refuses.clone()], exhausted(not_allowed)),
        (pod("Running", "True"), vec![allows.clone(), refuses.clone()], Err(Refusal::Several)),
        // What is over or has not begun is not protected, however many budgets select it.
        (pod("Succeeded", "False"), vec![refuses.clone(), refuses.clone()], Ok(Ground::Over)),
        (pod("Failed", "False"), vec![refuses.clone()], Ok(Ground::Over)),
        (pod("Pending", "False"), vec![refuses.clone()], Ok(Ground::Pending)),
        // Enough others are healthy.
        (pod("Running", "False"), vec![refuses.clone()], unready()),
        (pod("Running", "False"), vec![allows.clone()], unready()),
        (
            pod("Running", "False"),
            vec![broken.clone()],
            exhausted("The disruption budget b needs 2 healthy pods and has 1 currently"),
        ),
        (
            pod("Running", "False"),
            vec![budget("b", &none, &counts(0, 0, 0))],
            exhausted("The disruption budget b needs 0 healthy pods and has 0 currently"),
        ),
        (
            pod("Running", "False"),
            vec![budget("b", &json!({"unhealthyPodEvictionPolicy": "IfHealthyBudget"}), &counts(0, 2, 2))],
            unready(),
        ),
        (
            pod("Running", "False"),
            vec![budget("b", &json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), &counts(0, 1, 2))],
            unready(),
        ),
        (
            pod("Running", "True"),
            vec![budget("b", &json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), &counts(0, 2, 2))],
            exhausted(not_allowed),
        ),
        // Without a selector a budget selects no pod, with an empty one all.
        (
            pod("Running", "True"),
            vec![budget("b", &json!({"selector": null}), &counts(0, 2, 2))],
            Ok(Ground::Unprotected),
        ),
        (
            pod("Running", "True"),
            vec![budget("b", &json!({"selector": {"matchLabels": null}}), &counts(1, 2, 1))],
            spends(),
        ),
        (
            pod("Running", "True"),
            vec![budget("b", &json!({"selector": {"matchLabels": {"app": "db"}}}), &counts(0, 2, 2))],
            Ok(Ground::Unprotected),
        ),
        (
            pod("Running", "True"),
            vec![budget("b", &none, &json!({"disruptionsAllowed": 5, "observedGeneration": 1}))],
            Err(Refusal::BeingProcessed { budget: "b".to_owned() }),
        ),
    ] {
        assert_eq!(ground(&pod, &budgets, now()), result, "{pod} by {budgets:?}");
    }
    let mut ending = pod("Running", "True");
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(ground(&ending, &[refuses], now()), Ok(Ground::Over));
}

/// What a kube-apiserver says in these states.
#[test]
fn why_a_budget_is_exhausted() {
    let not_allowed = "The disruption budget b does not allow evicting pods currently";
    for (healthy, condition, why) in [
        (1, condition("False", "SyncFailed", "boom"), format!("{not_allowed} because it failed sync: boom")),
        (3, condition("False", "SyncFailed", "boom"), format!("{not_allowed} because it failed sync: boom")),
        (3, condition("False", "InsufficientPods", "msg"), format!("{not_allowed} (InsufficientPods): msg")),
        (3, condition("False", "InsufficientPods", ""), not_allowed.to_owned()),
        (3, condition("Unknown", "Other", "msg"), not_allowed.to_owned()),
        (3, condition("True", "SufficientPods", "msg"), not_allowed.to_owned()),
        (3, json!({}), not_allowed.to_owned()),
        (
            1,
            condition("False", "Other", "msg"),
            "The disruption budget b needs 1 healthy pods and has 1 currently".to_owned(),
        ),
    ] {
        let mut status = counts(0, healthy, 1);
        json_patch::merge(&mut status, &condition);
        let refused = spend(&budget("b", &json!({}), &status), "p", now());
        assert_eq!(refused, Err(Refusal::Exhausted { why }), "{status}");
    }
}

#[test]
fn refusals_as_the_client_sees_them() {
    let status = |refusal: Refusal| ApiError::from(refusal).status();
    let budget = || "b".to_owned();
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let cause = |message: &str| json!([{"reason": "DisruptionBudget", "message": message}]);
    assert_eq!(
        status(Refusal::Exhausted { why: "why".to_owned() }),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "TooManyRequests", "details": {"causes": cause("why")}, "code": 429})
    );
    assert_eq!(
        status(Refusal::BeingProcessed { budget: budget() })["details"],
        json!({"causes": cause("The disruption budget b is still being processed by the server."),
            "retryAfterSeconds": 10})
    );
    assert_eq!(
        status(Refusal::Several),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 500,
            "message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."})
    );
    assert_eq!(
        status(Refusal::Forbidden { budget: budget(), why: "why" }),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
            "reason": "Forbidden", "message": "poddisruptionbudget.policy \"b\" is forbidden: why",
            "details": {"name": "b", "group": "policy", "kind": "poddisruptionbudget"}})
    );
}

#[test]
fn too_many_evictions_that_nobody_noticed() {
    let with = |count: usize| {
        let pods: Value = (0..count).map(|i| (format!("p{i}"), json!("2026-01-01T00:00:00Z"))).collect();
        budget("b", &json!({}), &json!({"disruptionsAllowed": 1, "disruptedPods": pods}))
    };
    assert!(spend(&with(2000), "p", now()).is_ok());
    let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
    assert_eq!(spend(&with(2001), "p", now()), Err(Refusal::Forbidden { budget: "b".to_owned(), why }));
    let negative = budget("b", &json!({}), &counts(-1, 0, 0));
    let why = "pdb disruptions allowed is negative";
    assert_eq!(spend(&negative, "p", now()), Err(Refusal::Forbidden { budget: "b".to_owned(), why }));
}

proptest! {
    /// A budget is spent exactly as often as it allows, and each time says for whom.
    #[test]
    fn a_budget_is_spent_as_often_as_it_allows(allowed in 0i32..6, tries in 0usize..10) {
        let mut budget = budget("b", &json!({}), &counts(allowed, allowed, 0));
        let mut spent = 0;
        for i in 0..tries {
            match spend(&budget, &format!("p{i}"), now()) {
                Err(_) => prop_assert_eq!(spent, allowed),
                Ok(status) => {
                    spent += 1;
                    prop_assert_eq!(status.disruptions_allowed, Some(allowed - spent));
                    prop_assert_eq!(status.disrupted_pods.as_ref().map(|pods| pods.len() as i32), Some(spent));
                    // Only the last one changes the condition.
                    prop_assert_eq!(status.conditions.is_some(), spent == allowed);
                    budget.status = Some(status);
                }
            }
        }
    }
}
