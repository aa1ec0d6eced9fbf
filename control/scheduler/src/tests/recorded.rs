//! What kube-scheduler has decided and said in the same clusters: `recorded.tsv` says at its beginning how it was recorded.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};

use super::{
    cases::{self, Case, priority},
    *,
};
use crate::{cache::Budget, cycle::Cycle, scores};

fn of<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

/// The pod, with what admission makes of its priority class.
fn admitted(object: &Value) -> PodInfo {
    let mut object = object.clone();
    object["metadata"]["uid"] = object["metadata"]["name"].clone();
    let class = object["spec"]["priorityClassName"].as_str().unwrap_or("p0").to_owned();
    let (priority, policy) = priority(&class);
    object["spec"]["priority"] = json!(priority);
    object["spec"]["preemptionPolicy"] = json!(policy);
    PodInfo::of(&of(&object))
}

fn apply(state: &mut State, object: &Value, now: Instant) {
    match object["kind"].as_str().unwrap() {
        "Node" => state.node_applied(&of(object), now),
        "Pod" => state.pod_applied(admitted(object), true, now),
        "PersistentVolumeClaim" => storage::<PersistentVolumeClaim>(state, &of(object), now),
        "PersistentVolume" => storage::<PersistentVolume>(state, &of(object), now),
        "StorageClass" => storage::<StorageClass>(state, &of(object), now),
        "Service" => {
            let name = object["metadata"]["name"].as_str().unwrap();
            state.service(&("default".to_owned(), name.to_owned()), Some(of(&object["spec"]["selector"])));
        }
        "PodDisruptionBudget" => {
            let budget: PodDisruptionBudget = of(object);
            let name = budget.metadata.name.clone().unwrap();
            let selector = Selector::of(budget.spec.unwrap().selector.as_ref());
            let disruptions_allowed = budget.status.unwrap().disruptions_allowed.unwrap();
            let namespace = "default".to_owned();
            let disrupted = Default::default();
            let budget = Budget { namespace: namespace.clone(), selector, disruptions_allowed, disrupted };
            state.budget((namespace, name), Some(budget));
        }
        other => panic!("{other}"),
    }
}

/// The best nodes for a pod.
fn best(state: &mut State, pod: &PodInfo) -> Vec<String> {
    let names: Vec<String> = state.cluster().nodes.keys().cloned().collect();
    let feasible: Vec<String> = names.into_iter().filter(|name| state.why_not(&pod.key(), name).is_none()).collect();
    let pod = std::sync::Arc::new(pod.clone());
    let cluster = state.cluster_mut();
    let Ok(cycle) = Cycle::new(cluster, &pod, pod.constraints.as_ref().unwrap()) else { return Vec::new() };
    let totals = scores::totals(cluster, &cycle, &feasible);
    let top = totals.iter().max().copied();
    feasible.into_iter().zip(totals).filter(|(_, total)| Some(*total) == top).map(|(name, _)| name).collect()
}

#[test]
fn decisions_and_texts_are_those_of_kube_scheduler() {
    let mut differing = Vec::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/recorded.tsv");
    let recorded = std::fs::read_to_string(path).unwrap();
    for (line, case) in recorded.lines().filter_map(|line| Some((line, Case::read(line)?))) {
        assert_eq!(case.line(), line, "it is read as it is written");
        let (mut state, now) = (State::default(), Instant::now());
        case.objects().iter().for_each(|object| apply(&mut state, object, now));
        let pod = case.pod();
        apply(&mut state, &pod, now);
        let best = best(&mut state, &admitted(&pod));
        let theirs = case.decision;
        let ours = match next(&mut state, now).unwrap().1 {
            Decision::Bind { node } | Decision::BindVolumes { node, .. } => {
                // Of equally good nodes kube-scheduler takes any.
                let node = if best.contains(&theirs.node) { theirs.node.clone() } else { node };
                cases::Decision { node, ..Default::default() }
            }
            Decision::Unschedulable(refusal) => {
                let preemption = refusal.preemption.as_ref();
                let nominated = preemption.map_or_else(String::new, |preemption| preemption.node.clone());
                let victims = preemption.into_iter().flat_map(|preemption| &preemption.victims);
                let mut victims: Vec<String> = victims.map(|victim| victim.name.clone()).collect();
                victims.sort();
                cases::Decision { message: refusal.message, node: String::new(), nominated, victims }
            }
        };
        if ours != theirs {
            differing.push(format!("{}:\n  ours   {ours:?}\n  theirs {theirs:?}", case.name));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
