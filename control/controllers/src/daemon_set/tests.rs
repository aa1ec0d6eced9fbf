use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::PodCondition},
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{backoff::FailedPods, placement::*, plan::*, status, status::Counts};
use crate::runtime::CachedNode;
use crate::runtime::cached_pod::{CachedPod, CachedPodSpec, CachedPodStatus};

const RUN: Fit = Fit { run: true, stay: true };
const STAY: Fit = Fit { run: false, stay: true };
const LEAVE: Fit = Fit { run: false, stay: false };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), "web".to_owned())])
}

fn pod(name: &str, node: &str, hash: &str, phase: &str, ready: Option<i64>) -> CachedPod {
    let mut pod = CachedPod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.labels = Some(labels());
    pod.metadata.labels.as_mut().unwrap().insert(HASH_LABEL.into(), hash.into());
    let owner = OwnerReference { uid: "set".into(), controller: Some(true), ..OwnerReference::default() };
    pod.metadata.owner_references = Some(vec![owner]);
    pod.metadata.creation_timestamp = Some(Time(at(0)));
    pod.spec = Some(CachedPodSpec { node_name: Some(node.into()), ..CachedPodSpec::default() });
    let ready_now = if ready.is_some() { "True" } else { "False" };
    pod.status = Some(CachedPodStatus {
        phase: Some(phase.into()),
        conditions: Some(vec![PodCondition {
            type_: "Ready".into(),
            status: ready_now.into(),
            last_transition_time: ready.map(|s| Time(at(s))),
            ..PodCondition::default()
        }]),
        ..CachedPodStatus::default()
    });
    pod
}

fn up(name: &str, node: &str, hash: &str) -> Arc<CachedPod> {
    Arc::new(pod(name, node, hash, "Running", Some(1)))
}

fn unready(name: &str, node: &str, hash: &str) -> Arc<CachedPod> {
    Arc::new(pod(name, node, hash, "Running", None))
}

fn with(mut pod: CachedPod, change: impl FnOnce(&mut CachedPod)) -> Arc<CachedPod> {
    change(&mut pod);
    Arc::new(pod)
}

fn rolling(max_unavailable: usize, max_surge: usize) -> Update {
    Update::Rolling { max_unavailable, max_surge }
}

fn desired(labels: &BTreeMap<String, String>, update: Update) -> Desired<'_> {
    Desired { uid: "set", selector: labels.into(), hash: "new", update, min_ready: Duration::ZERO }
}

fn nodes(all: &[(&str, Fit)]) -> BTreeMap<String, Fit> {
    all.iter().map(|(name, fit)| ((*name).to_owned(), *fit)).collect()
}

/// Nodes that get a pod, and names of pods that are deleted.
fn plan(update: Update, on: &[(&str, Fit)], pods: &[Arc<CachedPod>]) -> (Vec<String>, Vec<String>) {
    let labels = labels();
    let got = reconcile(&desired(&labels, update), &nodes(on), pods, &FailedPods::default(), true, at(100));
    (got.create, got.delete.iter().filter_map(|pod| pod.metadata.name.clone()).collect())
}

fn change(create: &[&str], delete: &[&str]) -> (Vec<String>, Vec<String>) {
    let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    (owned(create), owned(delete))
}

#[test]
fn every_node_that_fits_has_one_pod() {
    let once = rolling(1, 0);
    assert_eq!(plan(once, &[("a", RUN), ("b", STAY), ("c", LEAVE)], &[]), change(&["a"], &[]));
    let placed = [up("pa", "a", "new"), up("pb", "b", "new"), up("pc", "c", "new")];
    assert_eq!(plan(once, &[("a", RUN), ("b", STAY), ("c", LEAVE)], &placed), change(&[], &["pc"]));
    let younger =
        with(pod("young", "a", "new", "Running", Some(1)), |p| p.metadata.creation_timestamp = Some(Time(at(9))));
    let unbound =
        with(pod("aa", "", "new", "Pending", None), |p| p.spec.as_mut().unwrap().target_node = Some("a".into()));
    let many = [younger, unbound, up("old", "a", "new")];
    assert_eq!(plan(once, &[("a", RUN)], &many), change(&[], &["young", "aa"]));
    let lost =
        with(pod("lost", "", "new", "Pending", None), |p| p.spec.as_mut().unwrap().target_node = Some("z".into()));
    assert_eq!(
        plan(once, &[("a", RUN)], &[lost, up("pa", "a", "new"), up("bound", "y", "new")]),
        change(&[], &["lost"])
    );
    let going =
        with(pod("going", "a", "new", "Running", Some(1)), |p| p.metadata.deletion_timestamp = Some(Time(at(5))));
    assert_eq!(plan(once, &[("a", RUN)], &[going]), change(&[], &[]));
    let done = with(pod("done", "a", "new", "Failed", None), |p| p.metadata.deletion_timestamp = Some(Time(at(5))));
    assert_eq!(plan(once, &[("a", RUN)], &[done]), change(&["a"], &[]), "what runs no more is not waited for");
    let foreign = with(pod("foreign", "c", "new", "Running", Some(1)), |p| {
        p.metadata.owner_references.as_mut().unwrap()[0].uid = "else".into()
    });
    assert_eq!(plan(once, &[("c", LEAVE)], &[foreign]), change(&[], &[]));
}

#[test]
fn with_a_surge_a_node_does_not_wait_for_the_end_of_its_pod() {
    let going =
        with(pod("going", "a", "new", "Running", Some(1)), |p| p.metadata.deletion_timestamp = Some(Time(at(5))));
    let on = |fit| plan(rolling(0, 1), &[("a", fit)], &[Arc::clone(&going)]);
    assert_eq!(on(RUN), change(&["a"], &[]));
    assert_eq!(on(STAY), change(&[], &[]));
    let both = [going.clone(), up("next", "a", "new")];
    assert_eq!(plan(rolling(0, 1), &[("a", RUN)], &both), change(&[], &[]));
}

#[test]
fn with_surge_old_pods_leave_as_new_ones_take_over() {
    // `b` and `c` may keep their pods, of an older template.
    let on = [("a", RUN), ("b", STAY), ("c", STAY)];
    let old = [up("pb", "b", "old"), up("pc", "c", "old")];
    let with_new = |new: Arc<CachedPod>| [&old[..], &[new]].concat();
    assert_eq!(plan(rolling(0, 1), &on, &with_new(unready("pa", "a", "new"))), change(&[], &["pb"]));
    assert_eq!(plan(rolling(0, 1), &on, &with_new(up("pa", "a", "new"))), change(&[], &["pb", "pc"]));
    let dead = [unready("pb", "b", "old"), unready("pa", "a", "new")];
    assert_eq!(plan(rolling(0, 1), &on, &dead), change(&[], &["pb"]), "what is not available is not missed");
}

#[test]
fn failed_pods_are_replaced_later_each_time() {
    let labels = labels();
    let set = desired(&labels, rolling(1, 0));
    let (on, mut failed) = (nodes(&[("a", RUN)]), FailedPods::default());
    let pods = [Arc::new(pod("p", "a", "new", "Failed", None))];
    let mut now = at(100);
    for wait in [1, 2, 4, 8, 16] {
        let got = reconcile(&set, &on, &pods, &failed, true, now);
        assert_eq!((got.delete.len(), got.ended.len()), (1, 1));
        assert!(got.ended[0].failed);
        failed.deleted("a", now);
        let got = reconcile(&set, &on, &pods, &failed, true, now);
        assert_eq!((got.delete.len(), got.recheck), (0, Some(Duration::from_secs(wait))));
        now = now.checked_add(jiff::SignedDuration::from_secs(i64::try_from(wait).unwrap())).unwrap();
    }
    (0..40).for_each(|_| failed.deleted("a", now));
    assert_eq!(failed.wait("a", now), Some(Duration::from_secs(900)));
    failed.deleted("a", now.checked_add(jiff::SignedDuration::from_secs(1801)).unwrap());
    let later = now.checked_add(jiff::SignedDuration::from_secs(1801)).unwrap();
    assert_eq!(failed.wait("a", later), Some(Duration::from_secs(1)), "long after, it is the first again");

    let ended = [Arc::new(pod("p", "a", "new", "Succeeded", None))];
    let got = reconcile(&set, &on, &ended, &failed, true, later);
    assert!(got.delete.len() == 1 && !got.ended[0].failed);
    assert!(reconcile(&set, &on, &[], &failed, false, later).create.is_empty(), "own writes are on their way");
}

#[test]
fn pods_are_replaced_in_place() {
    let on = [("a", RUN), ("b", RUN), ("c", RUN)];
    let old = [up("pa", "a", "old"), up("pb", "b", "old"), up("pc", "c", "old")];
    assert_eq!(plan(rolling(1, 0), &on, &old), change(&[], &["pa"]));
    assert_eq!(plan(rolling(2, 0), &on, &old), change(&[], &["pa", "pb"]));
    assert_eq!(plan(Update::OnDelete, &on, &old), change(&[], &[]));
    let mixed = [unready("pa", "a", "new"), up("pb", "b", "old"), up("pc", "c", "old")];
    assert_eq!(plan(rolling(1, 0), &on, &mixed), change(&[], &[]), "the new one is waited for");
    let broken = [up("pa", "a", "old"), unready("pb", "b", "old"), unready("pc", "c", "old")];
    assert_eq!(plan(rolling(1, 0), &on, &broken), change(&[], &["pb", "pc"]), "what is down can be replaced");
    let missing = [up("pb", "b", "old"), up("pc", "c", "old")];
    assert_eq!(plan(rolling(1, 0), &on, &missing), change(&["a"], &[]), "first all nodes have a pod");
}

#[test]
fn pods_are_replaced_beside_each_other() {
    let on = [("a", RUN), ("b", RUN)];
    let old = [up("pa", "a", "old"), up("pb", "b", "old")];
    assert_eq!(plan(rolling(0, 1), &on, &old), change(&["a"], &[]));
    let [pa, pb] = old;
    let beside = [Arc::clone(&pa), unready("na", "a", "new"), Arc::clone(&pb)];
    assert_eq!(plan(rolling(0, 1), &on, &beside), change(&[], &[]));
    assert_eq!(plan(rolling(0, 2), &on, &beside), change(&["b"], &[]));
    let ready = [Arc::clone(&pa), up("na", "a", "new"), pb];
    assert_eq!(plan(rolling(0, 1), &on, &ready), change(&[], &["pa"]));
    let dead = [unready("pa", "a", "old"), unready("na", "a", "new"), unready("pb", "b", "old")];
    assert_eq!(plan(rolling(0, 1), &on, &dead), change(&[], &["pa"]));
    let [_, _, pb] = dead;
    assert_eq!(plan(rolling(0, 1), &on, &[up("na", "a", "new"), pb]), change(&["b"], &[]));
}

#[test]
fn nodes_are_counted() {
    let (labels, on) = (labels(), nodes(&[("a", RUN), ("b", RUN), ("c", RUN), ("d", STAY), ("e", LEAVE)]));
    let set = Desired { min_ready: Duration::from_secs(10), ..desired(&labels, rolling(1, 0)) };
    let pods = [up("pa", "a", "new"), Arc::new(pod("pb", "b", "old", "Running", Some(97))), up("pd", "d", "new")];
    let got = reconcile(&set, &on, &pods, &FailedPods::default(), true, at(100));
    let counts = Counts { desired: 3, current: 2, misscheduled: 1, ready: 2, updated: 1, available: 1 };
    assert_eq!((got.counts, got.recheck), (counts, Some(Duration::from_secs(7))));
    assert_eq!(got.live.iter().collect::<Vec<_>>(), ["new", "old"]);

    let mut set = DaemonSet::default();
    set.metadata.generation = Some(2);
    let patch = status::patch(&set, counts, None, true).unwrap();
    assert_eq!(patch["status"]["numberUnavailable"], 2);
    set.status = Some(serde_json::from_value(patch["status"].clone()).unwrap());
    assert_eq!(status::patch(&set, counts, None, true), None, "it is written only when it changes");
    set.metadata.generation = Some(3);
    assert_eq!(status::patch(&set, counts, None, false), None);
    assert_eq!(status::patch(&set, counts, None, true).unwrap()["status"]["observedGeneration"], 3);
}

fn node(taints: Value) -> CachedNode {
    serde_json::from_value(json!({
        "metadata": {"name": "one", "labels": {"disk": "ssd"}}, "spec": {"taints": taints},
    }))
    .unwrap()
}

fn set(spec: Value) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "uid": "set", "annotations": {"deprecated.daemonset.template.generation": "3"}},
        "spec": {"selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec}},
    }))
    .unwrap()
}

#[test]
fn nodes_fit_by_name_labels_affinity_and_taints() {
    let affinity = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms}}}})
    };
    let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
    let not_ssd = json!([{"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["ssd"]}]}]);
    let named = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["one"]}]}]);
    for (spec, taints, expected) in [
        (json!({}), json!([]), RUN),
        (json!({"nodeName": "one"}), json!([]), RUN),
        (json!({"nodeName": "two"}), json!([]), LEAVE),
        (json!({"nodeSelector": {"disk": "ssd"}}), json!([]), RUN),
        (json!({"nodeSelector": {"disk": "hdd"}}), json!([]), LEAVE),
        (affinity(not_ssd), json!([]), LEAVE),
        (affinity(named), json!([]), RUN),
        (json!({}), taint("mine", "NoSchedule"), STAY),
        (json!({}), taint("mine", "NoExecute"), LEAVE),
        (json!({}), taint("mine", "PreferNoSchedule"), RUN),
        (json!({"tolerations": [{"key": "mine", "operator": "Exists"}]}), taint("mine", "NoExecute"), RUN),
        (json!({}), taint("node.kubernetes.io/not-ready", "NoExecute"), RUN),
        (json!({}), taint("node.kubernetes.io/not-ready", "NoSchedule"), STAY),
        (json!({}), taint("node.kubernetes.io/unreachable", "NoExecute"), RUN),
        (json!({}), taint("node.kubernetes.io/disk-pressure", "NoSchedule"), RUN),
        (json!({}), taint("node.kubernetes.io/memory-pressure", "NoSchedule"), RUN),
        (json!({}), taint("node.kubernetes.io/pid-pressure", "NoSchedule"), RUN),
        (json!({}), taint("node.kubernetes.io/unschedulable", "NoSchedule"), RUN),
        (json!({}), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), STAY),
        (json!({"hostNetwork": true}), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), RUN),
    ] {
        let mut whole = json!({"containers": []});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let set = set(whole);
        let got = fit(&set.spec.as_ref().unwrap().template, &node(taints.clone()));
        assert_eq!(got, expected, "{spec} {taints}");
    }
}

#[test]
fn a_pod_is_for_its_node_alone() {
    let terms = json!([
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]},
    ]);
    let tolerations = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        {"key": "mine", "operator": "Exists"},
    ]);
    let set = set(json!({"containers": [], "tolerations": tolerations, "affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}));
    let made = new_pod(&set, &set.spec.as_ref().unwrap().template, "new", "one");
    assert_eq!(made.metadata.generate_name.as_deref(), Some("web-"));
    let labels = made.metadata.labels.as_ref().unwrap();
    assert_eq!((labels[HASH_LABEL].as_str(), labels["pod-template-generation"].as_str()), ("new", "3"));
    let value = serde_json::to_value(&made).unwrap();
    let terms = &value["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let named = json!([{"key": "metadata.name", "operator": "In", "values": ["one"]}]);
    assert_eq!(terms[0], json!({"matchExpressions": [{"key": "disk", "operator": "Exists"}], "matchFields": named}));
    assert_eq!(terms[1], json!({"matchFields": named}));
    let tolerations = value["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 7, "six of nodes and one of its own");
    assert!(tolerations.iter().all(|toleration| toleration["tolerationSeconds"].is_null()));
    let cached: CachedPod = serde_json::from_value(value).unwrap();
    assert_eq!(node_of(&cached), Some("one"), "the controller finds its node before it is bound");
}

/// What happens around the controller.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Fit(usize, Fit),
    Template,
    Ready(usize),
    Unready(usize),
    Fail(usize),
    Gone(usize),
    Reconcile,
}

fn happening() -> impl Strategy<Value = Happening> {
    let fit = prop::sample::select(vec![RUN, STAY, LEAVE]);
    prop_oneof![
        2 => (0usize..5, fit).prop_map(|(node, fit)| Happening::Fit(node, fit)),
        1 => Just(Happening::Template),
        4 => (0usize..9).prop_map(Happening::Ready),
        1 => (0usize..9).prop_map(Happening::Unready),
        1 => (0usize..9).prop_map(Happening::Fail),
        3 => (0usize..9).prop_map(Happening::Gone),
        6 => Just(Happening::Reconcile),
    ]
}

#[derive(Debug)]
struct World {
    nodes: BTreeMap<String, Fit>,
    pods: Vec<CachedPod>,
    template: usize,
    serial: usize,
    update: Update,
}

impl World {
    fn set_ready(&mut self, index: usize, ready: bool) {
        if let Some(pod) = self.pods.get_mut(index)
            && let Some(status) = &mut pod.status
            && status.phase.as_deref() != Some("Failed")
        {
            *status = super::tests::pod("", "", "", "Running", ready.then_some(1)).status.unwrap();
        }
    }

    fn reconcile(&mut self) -> Result<usize, TestCaseError> {
        let (labels, hash) = (labels(), format!("h{}", self.template));
        let set = Desired { hash: &hash, ..desired(&labels, self.update) };
        let pods: Vec<Arc<CachedPod>> = self.pods.iter().cloned().map(Arc::new).collect();
        let plan = reconcile(&set, &self.nodes, &pods, &FailedPods::default(), true, at(100));
        let Update::Rolling { max_unavailable, max_surge } = self.update else { return Ok(0) };
        let there = |pod: &&CachedPod| pod.metadata.deletion_timestamp.is_none();
        let ready = |pod: &CachedPod| crate::pods::is_ready(pod);
        for node in &plan.create {
            prop_assert!(self.nodes[node].run, "only where it should");
            let of_node = self.pods.iter().filter(|pod| node_of(pod) == Some(node)).filter(there);
            let most = usize::from(max_surge > 0);
            prop_assert!(of_node.filter(|pod| !crate::pods::is_terminal(pod)).count() <= most);
        }
        let broken =
            |node: &&String| !self.pods.iter().filter(there).any(|pod| node_of(pod) == Some(node) && ready(pod));
        let unavailable = self.nodes.iter().filter(|(_, fit)| fit.run).map(|(node, _)| node).filter(broken).count();
        let names: Vec<_> = plan.delete.iter().map(|pod| pod.metadata.name.clone()).collect();
        let breaks = self.nodes.iter().filter(|(_, fit)| fit.run).filter(|(node, _)| {
            // Of several old ones the oldest stays, be it ready or not.
            let of_node = self.pods.iter().filter(there).filter(|pod| node_of(pod) == Some(node));
            if of_node.filter(|pod| !is_updated(pod, &hash)).count() > 1 {
                return false;
            }
            let mut of_node =
                self.pods.iter().filter(there).filter(|pod| node_of(pod) == Some(node) && ready(pod)).peekable();
            of_node.peek().is_some() && of_node.all(|pod| names.contains(&pod.metadata.name))
        });
        let breaks = breaks.count();
        prop_assert!(breaks == 0 || unavailable + breaks <= max_unavailable, "{} of {:?}", breaks, self);
        for pod in &mut self.pods {
            if names.contains(&pod.metadata.name) {
                pod.metadata.deletion_timestamp = Some(Time(at(1)));
            }
        }
        for node in &plan.create {
            self.serial += 1;
            let mut new = super::tests::pod(&format!("p{}", self.serial), "", &hash, "Pending", None);
            new.spec = Some(CachedPodSpec { target_node: Some(node.clone()), ..CachedPodSpec::default() });
            self.pods.push(new);
        }
        Ok(plan.create.len() + plan.delete.len())
    }

    fn take(&mut self, happening: Happening) -> Result<(), TestCaseError> {
        match happening {
            Happening::Fit(node, fit) => drop(self.nodes.insert(format!("n{node}"), fit)),
            Happening::Template => self.template += 1,
            Happening::Ready(i) => self.set_ready(i, true),
            Happening::Unready(i) => self.set_ready(i, false),
            Happening::Fail(i) => {
                if let Some(status) = self.pods.get_mut(i).and_then(|pod| pod.status.as_mut()) {
                    (status.phase, status.conditions) = (Some("Failed".into()), None);
                }
            }
            Happening::Gone(i) => {
                if self.pods.get(i).is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) {
                    self.pods.remove(i);
                }
            }
            Happening::Reconcile => drop(self.reconcile()?),
        }
        Ok(())
    }
}

proptest! {
    /// Node by node it comes to what all nodes say; a change that it missed makes it unknown.
    #[test]
    fn a_placement_follows_the_nodes(
        changes in prop::collection::vec((0u8..5, prop::option::of(0u8..3), prop::bool::weighted(0.9)), 0..20),
    ) {
        let (mut nodes, mut placement, mut seen) = (BTreeMap::new(), Placement::default(), true);
        placement.set((Some(1), 0), BTreeMap::new());
        for (number, (node, fit, follows)) in (1..).zip(&changes) {
            let name = format!("n{node}");
            let fit = fit.map(|fit| [RUN, STAY, LEAVE][usize::from(fit)]);
            match fit {
                Some(fit) => drop(nodes.insert(name.clone(), fit)),
                None => drop(nodes.remove(&name)),
            }
            if *follows {
                placement.follow(Some(1), &NodeChange { number, name: &name }, fit);
            }
            seen &= follows;
            let known = placement.known((Some(1), number));
            prop_assert_eq!(known.as_deref(), seen.then_some(&nodes));
            prop_assert!(placement.known((Some(2), number)).is_none());
        }
    }

    /// Whatever happens, no node has more pods than it may, and no more are taken down than may be; left alone, each node
    /// that fits ends with one pod of the newest template, and no other node gets one.
    #[test]
    fn one_pod_on_each_node(
        surge: bool,
        number in 1usize..3,
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let update = if surge { rolling(0, number) } else { rolling(number, 0) };
        let nodes = nodes(&[("n0", RUN), ("n1", RUN), ("n2", RUN)]);
        let mut world = World { nodes, pods: Vec::new(), template: 0, serial: 0, update };
        for happening in happenings {
            world.take(happening)?;
        }
        let mut quiet = 0;
        for _ in 0..200 {
            world.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
            (0..world.pods.len()).for_each(|i| world.set_ready(i, true));
            quiet = if world.reconcile()? == 0 { quiet + 1 } else { 0 };
            if quiet == 2 {
                break;
            }
        }
        prop_assert_eq!(quiet, 2);
        let hash = format!("h{}", world.template);
        for (node, fit) in &world.nodes {
            let of_node: Vec<_> = world.pods.iter().filter(|pod| node_of(pod) == Some(node)).collect();
            prop_assert_eq!(of_node.len(), usize::from(fit.run).max(usize::from(fit.stay).min(of_node.len())));
            prop_assert!(!fit.run || is_updated(of_node[0], &hash));
        }
    }
}
