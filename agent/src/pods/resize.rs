//! Resources that change while a pod runs: whether the node has room for them, and what each container needs done.
//! Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use windlass_kit::objects::{requests::Amounts, resources::Class};

use super::{admission::Claim, observed::Observed, plan::restarts, qos, spec};
use crate::engine::instance::{Instance, Limits, State};

/// The condition of a wish that is put off or refused.
pub(crate) const PENDING: &str = "PodResizePending";

/// What becomes of a wish for other resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is being done.
    Granted,
    /// There is no room now; there may be later.
    Deferred(String),
    /// This node can never give so much.
    Infeasible(String),
}

/// A pod's wish for other resources than it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) claim: Claim,
    /// When it was first put off.
    pub(crate) since: Timestamp,
}

/// What the pods of the node hold, and which of them wait for more, by uid.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    held: BTreeMap<String, Claim>,
    waiting: BTreeMap<String, Wish>,
}

impl Ledger {
    /// Takes note of what a pod holds and that it waits for no more; nothing when it is gone. Gives whether others may
    /// have more now.
    pub(crate) fn hold(&mut self, uid: &str, claim: Option<Claim>) -> bool {
        self.waiting.remove(uid);
        let now = claim.as_ref().map(|c| c.amounts.clone()).unwrap_or_default();
        let before = match claim {
            Some(claim) => self.held.insert(uid.to_owned(), claim),
            None => self.held.remove(uid),
        };
        before.is_some_and(|b| now.milli_cpu < b.amounts.milli_cpu || now.memory < b.amounts.memory)
    }

    /// What the other pods hold.
    pub(crate) fn others<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = (&'a str, &'a Claim)> + Clone {
        self.held.iter().map(|(other, claim)| (other.as_str(), claim)).filter(move |(other, _)| *other != uid)
    }

    /// Judges the wish of a pod that `has` something, after all who come before it; what is granted is held from then
    /// on. Gives too whether the turn of others came with it.
    pub(crate) fn judge(&mut self, uid: &str, has: Claim, wish: Wish, allocatable: &Amounts) -> (Verdict, bool) {
        self.held.entry(uid.to_owned()).or_insert(has);
        let wanted = wish.claim.clone();
        self.waiting.insert(uid.to_owned(), wish);
        let mut order: Vec<(String, Claim)> =
            self.waiting.iter().map(|(uid, wish)| (uid.clone(), wish.claim.clone())).collect();
        order.sort_by_cached_key(|(uid, _)| self.place(uid));
        let mut others_turn = false;
        for (waiting, claim) in order {
            if self.try_one(&waiting, &claim, allocatable) == Verdict::Granted {
                self.waiting.remove(&waiting);
                self.held.insert(waiting.clone(), claim);
                others_turn |= waiting != uid;
            }
        }
        let verdict =
            if self.waiting.contains_key(uid) { self.try_one(uid, &wanted, allocatable) } else { Verdict::Granted };
        if matches!(verdict, Verdict::Infeasible(_)) {
            self.waiting.remove(uid);
        }
        (verdict, others_turn)
    }

    fn try_one(&self, uid: &str, wanted: &Claim, allocatable: &Amounts) -> Verdict {
        let mut others = Amounts::default();
        self.others(uid).for_each(|(_, claim)| others.add(&claim.amounts));
        judge(&wanted.amounts, &others, allocatable)
    }

    /// Upstream's order: who asks for no more than it has, then by priority, by class, and who waits longest.
    fn place(&self, uid: &str) -> Option<(bool, Reverse<i32>, Class, Timestamp)> {
        let (wish, has) = (self.waiting.get(uid)?, self.held.get(uid)?);
        let (wished, has) = (&wish.claim.amounts, &has.amounts);
        let grows = wished.milli_cpu > has.milli_cpu || wished.memory > has.memory;
        Some((grows, Reverse(wish.claim.priority), wish.claim.class, wish.since))
    }
}

/// Whether `wanted` fits beside what the `others` of the node ask for.
pub(crate) fn judge(wanted: &Amounts, others: &Amounts, allocatable: &Amounts) -> Verdict {
    for (name, wanted, others, all) in [
        ("cpu", wanted.milli_cpu, others.milli_cpu, allocatable.milli_cpu),
        ("memory", wanted.memory, others.memory, allocatable.memory),
    ] {
        if wanted > all {
            return Verdict::Infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {all}"
            ));
        }
        if wanted > all.saturating_sub(others) {
            return Verdict::Deferred(format!(
                "Node didn't have enough resource: {name}, requested: {wanted}, used: {others}, capacity: {all}"
            ));
        }
    }
    Verdict::Granted
}

/// How a container gets what its spec says now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// While it runs.
    Live,
    /// By being run again: its resizePolicy says so, or Docker cannot do it otherwise.
    Restart,
}

/// What a running container needs to have what its spec says; nothing when it has that.
pub(crate) fn way(container: &Container, instance: &Instance) -> Option<Way> {
    let (is, wanted) = (instance.limits, qos::limits(container));
    if !instance.is_running() || is == wanted {
        return None;
    }
    let restarts = |resource: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    let cpu = (is.cpu_shares, is.cpu_quota) != (wanted.cpu_shares, wanted.cpu_quota);
    let memory = is.memory != wanted.memory;
    // Docker takes no limit of memory away while a container runs.
    let again = (cpu && restarts("cpu")) || (memory && (restarts("memory") || wanted.memory == 0));
    Some(if again { Way::Restart } else { Way::Live })
}

/// Whether other resources were allocated to the pod than its spec says; or whether a container of it runs with others, or
/// has ended with such and is to be run again.
pub(crate) fn is_due(spec: &PodSpec, observed: &Observed) -> bool {
    if observed.allocated.as_ref().is_some_and(|allocated| allocated.differs(spec)) {
        return true;
    }
    spec::all_containers(spec).filter_map(|(c, role)| Some((c, role, observed.newest(&c.name)?))).any(
        |(container, role, instance)| match &instance.state {
            State::Running { .. } => way(container, instance).is_some(),
            State::Exited(exit) => {
                instance.limits != qos::limits(container) && restarts(spec, container, role, instance, exit, observed)
            }
            State::Created => false,
        },
    )
}

/// Whether the wish for other resources was put off or refused: containers keep what they have, also when they are run
/// again.
pub(crate) fn is_put_off(observed: &Observed) -> bool {
    matches!(observed.resize, Some(Verdict::Deferred(_) | Verdict::Infeasible(_)))
}

/// The resources of a container as `limits` hold it; nothing for one whose spec names none. The memory that it
/// requests is its spec's, since Docker knows nothing of it.
pub(crate) fn held(container: &Container, limits: Limits) -> Option<ResourceRequirements> {
    let wanted = container.resources.clone().filter(|r| *r != ResourceRequirements::default())?;
    let mut bounds: BTreeMap<String, ApiQuantity> = wanted.limits.unwrap_or_default();
    let mut put = |resource: &str, value: i64, text: String| {
        if value > 0 {
            bounds.insert(resource.to_owned(), ApiQuantity(text));
        } else {
            bounds.remove(resource);
        }
    };
    put("cpu", limits.cpu_quota, format!("{}m", limits.cpu_quota * 1000 / qos::CPU_PERIOD));
    put("memory", limits.memory, in_units(limits.memory));
    let mut requests = wanted.requests.unwrap_or_default();
    // Two shares are what a container without a request has.
    let milli = if limits.cpu_shares > 2 { (limits.cpu_shares * 1000 + 1023) / 1024 } else { 0 };
    if milli > 0 || bounds.contains_key("cpu") {
        requests.insert("cpu".to_owned(), ApiQuantity(format!("{milli}m")));
    } else {
        requests.remove("cpu");
    }
    Some(ResourceRequirements { limits: Some(bounds), requests: Some(requests), ..wanted })
}

/// Bytes in the largest binary unit that leaves nothing over, as the API writes quantities.
fn in_units(bytes: i64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let whole = units.into_iter().find(|(shift, _)| bytes % (1i64 << shift) == 0);
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Since when the API has been told that the pod's wish is put off.
pub(crate) fn pending_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let pending = conditions.iter().find(|c| c.type_ == PENDING && c.status == "True")?;
    pending.last_transition_time.as_ref().map(|at| at.0)
}

/// The container with what was allocated to it.
pub(crate) fn as_allocated(container: &Container, observed: &Observed) -> Container {
    let resources = observed.allocated.as_ref().and_then(|a| a.resources(container)).or(container.resources.as_ref());
    Container { resources: resources.cloned(), ..container.clone() }
}

/// The pod with the resources that its containers have where those are not what its spec says.
pub(crate) fn as_held(pod: &Pod, observed: &Observed) -> Pod {
    if let Some(allocated) = &observed.allocated {
        return allocated.applied_to(pod);
    }
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(instance) = observed.newest(&container.name)
            && instance.limits != qos::limits(container)
            && let Some(held) = held(container, instance.limits)
        {
            container.resources = Some(held);
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use windlass_kit::{objects::resources::request, quantity::Quantity};

    use super::*;
    use crate::pods::allocated::Allocated;

    #[test]
    fn what_fits_is_granted() {
        let needs = |milli_cpu, memory| Amounts { milli_cpu, memory, ..Amounts::default() };
        let ask = |wanted, others| judge(&wanted, &others, &needs(2000, 1 << 30));
        assert_eq!(ask(needs(2000, 1 << 30), needs(0, 0)), Verdict::Granted);
        assert_eq!(ask(needs(500, 0), needs(1500, 1 << 30)), Verdict::Granted);
        assert!(matches!(ask(needs(501, 0), needs(1500, 0)), Verdict::Deferred(why) if why.contains("cpu")));
        assert!(matches!(ask(needs(0, 1), needs(0, 1 << 30)), Verdict::Deferred(why) if why.contains("memory")));
        assert!(matches!(ask(needs(2001, 0), needs(0, 0)), Verdict::Infeasible(_)));
    }

    #[test]
    fn whoever_waits_has_its_turn_in_upstreams_order() {
        let needs =
            |milli_cpu| Claim { amounts: Amounts { milli_cpu, ..Amounts::default() }, ..Claim::of(&Pod::default()) };
        let wish = |milli_cpu, priority, class, second| Wish {
            claim: Claim { priority, class, ..needs(milli_cpu) },
            since: Timestamp::from_second(second).unwrap(),
        };
        let mut ledger = Ledger::default();
        let node = Amounts { milli_cpu: 2000, memory: 1 << 30, ..Amounts::default() };
        let deferred = |told: (Verdict, bool)| matches!(told, (Verdict::Deferred(_), false));
        assert!(!ledger.hold("full", Some(needs(1600))));
        let all = [
            ("late", wish(300, 0, Class::Burstable, 9)),
            ("early", wish(300, 0, Class::Burstable, 1)),
            ("sure", wish(300, 0, Class::Guaranteed, 9)),
            ("dear", wish(300, 5, Class::BestEffort, 9)),
        ];
        for (uid, _) in &all {
            ledger.hold(uid, Some(needs(100)));
        }
        for (uid, wish) in &all {
            assert!(deferred(ledger.judge(uid, needs(100), wish.clone(), &node)), "{uid}");
        }
        // Each time there is room for one more, whoever asks: the order alone decides.
        for (held, turn) in [(1400, "dear"), (1200, "sure"), (1000, "early"), (800, "late")] {
            assert!(ledger.hold("full", Some(needs(held))));
            let asks = |ledger: &mut Ledger, uid: &str| {
                let wish = all.iter().find(|(other, _)| *other == uid).map(|(_, wish)| wish.clone()).unwrap();
                ledger.judge(uid, needs(100), wish, &node).0
            };
            if turn != "late" {
                assert!(matches!(asks(&mut ledger, "late"), Verdict::Deferred(_)), "before {turn}");
            }
            assert_eq!(asks(&mut ledger, turn), Verdict::Granted);
        }
        // Too much for any day is refused and waits for nothing; less than it has is granted at once.
        assert!(matches!(
            ledger.judge("dear", needs(0), wish(3000, 9, Class::Burstable, 0), &node).0,
            Verdict::Infeasible(_)
        ));
        assert_eq!(ledger.judge("dear", needs(0), wish(100, 0, Class::Burstable, 0), &node).0, Verdict::Granted);
        assert!(ledger.hold("full", None) && ledger.waiting.is_empty());
    }

    #[test]
    fn what_ended_with_other_resources_is_due_when_it_comes_back() {
        let spec: PodSpec = serde_json::from_str(
            r#"{"restartPolicy":"OnFailure","containers":[{"name":"c","resources":{"limits":{"memory":"8Mi"}}}]}"#,
        )
        .unwrap();
        let answer = |code: i64, memory: i64| -> Instance {
            let made: bollard::models::ContainerInspectResponse = serde_json::from_value(serde_json::json!({
                "Id": "1", "Name": "/k8s_c_p_n_u_0", "State": {"Status": "exited", "ExitCode": code,
                    "StartedAt": "2026-01-01T00:00:00Z", "FinishedAt": "2026-01-01T00:00:01Z"},
                "HostConfig": {"Memory": memory, "CpuShares": 2, "CpuQuota": -1},
                "Config": {"Labels": {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "p",
                    "io.kubernetes.pod.namespace": "n", "io.kubernetes.container.name": "c",
                    "io.kubernetes.docker.type": "container"}}}))
            .unwrap();
            Instance::read(&made).unwrap()
        };
        for (code, memory, wanted) in [(1, 16 << 20, true), (0, 16 << 20, false), (1, 8 << 20, false)] {
            let mut observed = Observed::default();
            observed.put(answer(code, memory));
            assert_eq!(is_due(&spec, &observed), wanted, "{code} {memory}");
            let pod = Pod { spec: Some(spec.clone()), ..Pod::default() };
            let held = as_held(&pod, &observed).spec.unwrap();
            assert_eq!(qos::limits(&held.containers[0]).memory, memory);
        }
    }

    /// Docker knows no requests of memory: the record of what was allocated tells that they are wished for.
    #[test]
    fn a_wish_for_a_request_alone_is_due() {
        let pod = |request: &str| -> Pod {
            let text = format!(
                r#"{{"spec":{{"containers":[{{"name":"c","resources":{{"requests":{{"memory":"{request}"}},"limits":{{"memory":"64Mi"}}}}}}]}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let (has, wish) = (pod("16Mi"), pod("48Mi"));
        let allocated = |pod: &Pod| Some(Allocated::of(pod.spec.as_ref().unwrap()));
        let mut observed = Observed { allocated: allocated(&has), ..Observed::default() };
        assert!(is_due(wish.spec.as_ref().unwrap(), &observed) && !is_due(has.spec.as_ref().unwrap(), &observed));
        assert_eq!(as_held(&wish, &observed), has, "while it is put off the pod has what it had");
        let memory = |pod: &Pod| Claim::of(pod).amounts.memory;
        assert_eq!((memory(&as_held(&wish, &observed)), memory(&wish)), (16 << 20, 48 << 20));
        observed.allocated = allocated(&wish);
        assert!(!is_due(wish.spec.as_ref().unwrap(), &observed));
    }

    #[test]
    fn a_wish_keeps_its_place_over_a_restart_of_the_agent() {
        let pod: Pod = serde_json::from_str(
            r#"{"status":{"conditions":[{"type":"PodResizePending","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
        )
        .unwrap();
        assert_eq!(pending_since(&pod), Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(pending_since(&Pod::default()), None);
    }

    #[test]
    fn what_is_held_makes_the_same_limits() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","resources":{"requests":{"cpu":"2","memory":"1Gi"},"limits":{"cpu":"4"}}}"#,
        )
        .unwrap();
        for limits in [
            Limits { memory: 32 << 20, cpu_shares: 102, cpu_quota: 20_000 },
            Limits { memory: 1_000_001, cpu_shares: 2, cpu_quota: 0 },
            Limits { memory: 0, cpu_shares: 2, cpu_quota: 50_000 },
        ] {
            let held = Container { resources: held(&container, limits), ..container.clone() };
            assert_eq!(qos::limits(&held), limits, "{:?}", held.resources);
            assert_eq!(request(&held, "memory").map(Quantity::units), Some(1 << 30));
        }
        assert_eq!(held(&Container::default(), Limits::default()), None);
    }
}
