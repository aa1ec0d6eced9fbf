//! What pods have reserved of the node, and the resizes that ask for more; upstream's allocation manager. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use windlass_kit::objects::{
    requests::{Amounts, HostPort, host_ports, requests},
    resources::{self, Class},
};

use crate::pods::lifecycle::{observed::ResizeDecision, spec};

/// The node's resources that one pod occupies for as long as it is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) amounts: Amounts,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) class: Class,
    pub(crate) priority: i32,
    /// Upstream's: a static pod, or one of a system priority.
    pub(crate) critical: bool,
}

impl Reservation {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            amounts: requests(pod),
            ports: host_ports(pod),
            class: resources::class_of(pod),
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            critical: spec::is_critical(pod),
        }
    }
}

/// A pod that asks for other resources than it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResizeRequest {
    pub(crate) reservation: Reservation,
    /// When it was first deferred.
    pub(crate) since: Timestamp,
}

/// The reservations of all pods of the node, and the resizes that are deferred, by uid. One is made when its pod is admitted,
/// and ends with the pod's resources or when no source has the pod any more, whichever is first: as in kubelet, a pod that was
/// deleted by force does not count, though its containers may still be stopping.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    by_pod: BTreeMap<String, Reservation>,
    deferred: BTreeMap<String, ResizeRequest>,
}

impl Reservations {
    /// Sets or clears the reservation of a pod and drops its deferred resize. Gives whether capacity was freed.
    pub(crate) fn set(&mut self, uid: &str, reservation: Option<Reservation>) -> bool {
        self.deferred.remove(uid);
        let now = reservation.as_ref().map(|r| r.amounts.clone()).unwrap_or_default();
        let before = match reservation {
            Some(reservation) => self.by_pod.insert(uid.to_owned(), reservation),
            None => self.by_pod.remove(uid),
        };
        before.is_some_and(|b| now.milli_cpu < b.amounts.milli_cpu || now.memory < b.amounts.memory)
    }

    /// Changes or clears the reservation of a pod, unless it has ended already.
    pub(crate) fn change(&mut self, uid: &str, reservation: Option<Reservation>) -> bool {
        self.by_pod.contains_key(uid) && self.set(uid, reservation)
    }

    /// The reservations of the other pods.
    pub(crate) fn others<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = (&'a str, &'a Reservation)> + Clone {
        self.by_pod.iter().map(|(other, one)| (other.as_str(), one)).filter(move |(other, _)| *other != uid)
    }

    /// Evaluates a pod's resize, after all deferred ones that come before it; what is granted is reserved at once. Gives too
    /// whether a resize of another pod was granted. A pod whose reservation has ended is granted nothing.
    pub(crate) fn evaluate(
        &mut self,
        uid: &str,
        request: ResizeRequest,
        allocatable: &Amounts,
    ) -> (ResizeDecision, bool) {
        if !self.by_pod.contains_key(uid) {
            return (ResizeDecision::Deferred("the pod is being removed from the node".to_owned()), false);
        }
        let wanted = request.reservation.clone();
        self.deferred.insert(uid.to_owned(), request);
        let mut order: Vec<(String, Reservation)> =
            self.deferred.iter().map(|(uid, request)| (uid.clone(), request.reservation.clone())).collect();
        order.sort_by_cached_key(|(uid, _)| self.priority_key(uid));
        let mut others_granted = false;
        for (pod, reservation) in order {
            if self.try_fit(&pod, &reservation, allocatable) == ResizeDecision::Granted {
                self.deferred.remove(&pod);
                self.by_pod.insert(pod.clone(), reservation);
                others_granted |= pod != uid;
            }
        }
        let decision = if self.deferred.contains_key(uid) {
            self.try_fit(uid, &wanted, allocatable)
        } else {
            ResizeDecision::Granted
        };
        if matches!(decision, ResizeDecision::Infeasible(_)) {
            self.deferred.remove(uid);
        }
        (decision, others_granted)
    }

    fn try_fit(&self, uid: &str, wanted: &Reservation, allocatable: &Amounts) -> ResizeDecision {
        let mut others = Amounts::default();
        self.others(uid).for_each(|(_, reservation)| others.add(&reservation.amounts));
        fit(&wanted.amounts, &others, allocatable)
    }

    /// Upstream's order: a pod that asks for no more than it has, then by priority, by class, and by age of the
    /// request.
    fn priority_key(&self, uid: &str) -> Option<(bool, Reverse<i32>, Class, Timestamp)> {
        let (request, current) = (self.deferred.get(uid)?, self.by_pod.get(uid)?);
        let (wanted, current) = (&request.reservation.amounts, &current.amounts);
        let grows = wanted.milli_cpu > current.milli_cpu || wanted.memory > current.memory;
        Some((grows, Reverse(request.reservation.priority), request.reservation.class, request.since))
    }
}

/// Whether `wanted` fits next to what the `others` of the node have reserved.
fn fit(wanted: &Amounts, others: &Amounts, allocatable: &Amounts) -> ResizeDecision {
    for (name, wanted, others, all) in [
        ("cpu", wanted.milli_cpu, others.milli_cpu, allocatable.milli_cpu),
        ("memory", wanted.memory, others.memory, allocatable.memory),
    ] {
        if wanted > all {
            return ResizeDecision::Infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {all}"
            ));
        }
        if wanted > all.saturating_sub(others) {
            return ResizeDecision::Deferred(format!(
                "Node didn't have enough resource: {name}, requested: {wanted}, used: {others}, capacity: {all}"
            ));
        }
    }
    ResizeDecision::Granted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_granted() {
        let needs = |milli_cpu, memory| Amounts { milli_cpu, memory, ..Amounts::default() };
        let ask = |wanted, others| fit(&wanted, &others, &needs(2000, 1 << 30));
        assert_eq!(ask(needs(2000, 1 << 30), needs(0, 0)), ResizeDecision::Granted);
        assert_eq!(ask(needs(500, 0), needs(1500, 1 << 30)), ResizeDecision::Granted);
        assert!(matches!(ask(needs(501, 0), needs(1500, 0)), ResizeDecision::Deferred(why) if why.contains("cpu")));
        assert!(matches!(ask(needs(0, 1), needs(0, 1 << 30)), ResizeDecision::Deferred(why) if why.contains("memory")));
        assert!(matches!(ask(needs(2001, 0), needs(0, 0)), ResizeDecision::Infeasible(_)));
    }

    #[test]
    fn whoever_waits_has_its_turn_in_upstreams_order() {
        let needs = |milli_cpu| Reservation {
            amounts: Amounts { milli_cpu, ..Amounts::default() },
            ..Reservation::of(&Pod::default())
        };
        let request = |milli_cpu, priority, class, second| ResizeRequest {
            reservation: Reservation { priority, class, ..needs(milli_cpu) },
            since: Timestamp::from_second(second).unwrap(),
        };
        let mut reservations = Reservations::default();
        let node = Amounts { milli_cpu: 2000, memory: 1 << 30, ..Amounts::default() };
        let deferred = |decided: (ResizeDecision, bool)| matches!(decided, (ResizeDecision::Deferred(_), false));
        assert!(!reservations.set("full", Some(needs(1600))));
        let all = [
            ("late", request(300, 0, Class::Burstable, 9)),
            ("early", request(300, 0, Class::Burstable, 1)),
            ("sure", request(300, 0, Class::Guaranteed, 9)),
            ("dear", request(300, 5, Class::BestEffort, 9)),
        ];
        for (uid, _) in &all {
            reservations.set(uid, Some(needs(100)));
        }
        for (uid, request) in &all {
            assert!(deferred(reservations.evaluate(uid, request.clone(), &node)), "{uid}");
        }
        // Each time there is room for one more: only the order decides, not who asks first.
        for (held, turn) in [(1400, "dear"), (1200, "sure"), (1000, "early"), (800, "late")] {
            assert!(reservations.set("full", Some(needs(held))));
            let asks = |reservations: &mut Reservations, uid: &str| {
                let request = all.iter().find(|(other, _)| *other == uid).map(|(_, request)| request.clone()).unwrap();
                reservations.evaluate(uid, request, &node).0
            };
            if turn != "late" {
                assert!(matches!(asks(&mut reservations, "late"), ResizeDecision::Deferred(_)), "before {turn}");
            }
            assert_eq!(asks(&mut reservations, turn), ResizeDecision::Granted);
        }
        // More than the node has is infeasible and not deferred; less than the pod has is granted at once.
        assert!(matches!(
            reservations.evaluate("dear", request(3000, 9, Class::Burstable, 0), &node).0,
            ResizeDecision::Infeasible(_)
        ));
        assert_eq!(
            reservations.evaluate("dear", request(100, 0, Class::Burstable, 0), &node).0,
            ResizeDecision::Granted
        );
        assert!(reservations.set("full", None) && reservations.deferred.is_empty());
    }

    #[test]
    fn an_ended_reservation_does_not_come_back() {
        let needs = Reservation {
            amounts: Amounts { milli_cpu: 100, memory: 1, ..Amounts::default() },
            ..Reservation::of(&Pod::default())
        };
        let mut reservations = Reservations::default();
        reservations.set("gone", Some(needs.clone()));
        assert!(!reservations.change("gone", Some(needs.clone())));
        assert!(reservations.set("gone", None));
        assert!(!reservations.change("gone", Some(needs.clone())));
        let request = ResizeRequest { reservation: needs.clone(), since: Timestamp::UNIX_EPOCH };
        let node = Amounts { milli_cpu: 2000, memory: 1 << 30, ..Amounts::default() };
        assert!(matches!(reservations.evaluate("gone", request, &node), (ResizeDecision::Deferred(_), false)));
        assert_eq!(reservations.others("new").count(), 0);
    }
}
