//! Everything that rounds look at, each in a place of its own, so that an answer finds its owner without a search. Reads no file.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    reading::Look,
    tracked::{Key, Tracked},
};
use crate::{config::Subject, source::Totals};

/// Tells the answers of looks apart. What has taken another's place since has another serial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) of_pod: bool,
    place: usize,
    serial: u64,
}

#[derive(Debug, Default)]
pub(super) struct Followed {
    /// In the order of rows: by namespace, pod, container and id.
    containers: Vec<Tracked>,
    /// Pods' own cgroups, in the order in which they were found.
    pods: Vec<Tracked>,
    /// So many were begun with so far.
    begun: u64,
}

fn order(tracked: &Tracked) -> (&str, &str, &str, &str) {
    let s = &tracked.subject;
    (&s.pod_namespace, &s.pod_name, &s.container_name, &s.container_id)
}

impl Followed {
    pub(super) fn containers(&self) -> impl Iterator<Item = &Tracked> {
        self.containers.iter()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Tracked> {
        self.pods.iter()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.containers.iter_mut().chain(&mut self.pods)
    }

    /// A container by its id, or a pod's own by its uid.
    pub(super) fn find(&self, id: &str) -> Option<&Tracked> {
        self.containers.iter().chain(&self.pods).find(|tracked| **tracked.key.id() == *id)
    }

    /// Whose answer it is; none when it has been forgotten meanwhile.
    pub(super) fn of(&mut self, ticket: Ticket) -> Option<&mut Tracked> {
        let among = if ticket.of_pod { &mut self.pods } else { &mut self.containers };
        let is = |tracked: &Tracked| tracked.serial == ticket.serial;
        let place = if among.get(ticket.place).is_some_and(is) { ticket.place } else { among.iter().position(is)? };
        among.get_mut(place)
    }

    /// Takes over a new list of containers; answers with those that are not in it.
    pub(super) fn adopt(&mut self, list: &[Subject]) -> Vec<Tracked> {
        let mut wanted: HashMap<&str, &Subject> = list.iter().map(|s| (s.container_id.as_str(), s)).collect();
        let is_gone = |tracked: &mut Tracked| !wanted.contains_key(tracked.subject.container_id.as_str());
        let gone = self.containers.extract_if(.., is_gone).collect();
        for known in &mut self.containers {
            let Some(subject) = wanted.remove(known.subject.container_id.as_str()) else { continue };
            if known.subject.pid != subject.pid {
                // Another process: the container was started again in the same place.
                self.begun += 1;
                *known = Tracked::of(subject, self.begun);
            } else if *known.subject != *subject {
                known.subject = Arc::new(subject.clone());
                // Its limits may be others as well.
                known.limits_due = 0;
            }
        }
        for subject in wanted.into_values() {
            self.begun += 1;
            self.containers.push(Tracked::of(subject, self.begun));
        }
        self.containers.sort_by(|a, b| order(a).cmp(&order(b)));
        let uids: HashSet<&str> = list.iter().map(|s| s.pod_uid.as_str()).collect();
        self.pods.retain(|pod| uids.contains(&**pod.key.id()));
        gone
    }

    /// Begins with the cgroup that a pod has for itself, unless that was done.
    pub(super) fn follow_pod(&mut self, uid: &str, make: impl FnOnce(Key, u64) -> Tracked) -> Option<Ticket> {
        if self.pods.iter().any(|pod| **pod.key.id() == *uid) {
            return None;
        }
        self.begun += 1;
        self.pods.push(make(Key::Pod(Arc::from(uid)), self.begun));
        Some(Ticket { of_pod: true, place: self.pods.len() - 1, serial: self.begun })
    }

    /// The next container of such a pod opens its cgroup again.
    pub(super) fn forget_pods(&mut self, gone: impl Fn(&Tracked) -> bool) {
        self.pods.retain(|pod| !gone(pod));
    }

    /// Looks at those that are chosen, as far as no earlier look is under way. What was late before comes last.
    pub(super) fn looks(
        &mut self,
        mono_ns: u64,
        totals: &Arc<Totals>,
        chosen: impl Fn(&Tracked) -> bool,
    ) -> Vec<(Ticket, Look)> {
        let mut looks = Vec::with_capacity(self.containers.len() + self.pods.len());
        let mut slow = Vec::new();
        for (of_pod, among) in [(false, &mut self.containers), (true, &mut self.pods)] {
            for (place, tracked) in among.iter_mut().enumerate().filter(|(_, t)| !t.under_way && chosen(t)) {
                let ticket = Ticket { of_pod, place, serial: tracked.serial };
                let to = if tracked.slow { &mut slow } else { &mut looks };
                to.push((ticket, tracked.look(mono_ns, totals)));
            }
        }
        looks.append(&mut slow);
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(id: &str, pod: &str) -> Subject {
        Subject { container_id: id.to_owned(), pod_name: pod.to_owned(), pod_uid: pod.to_owned(), ..Subject::default() }
    }

    fn pod_of(followed: &mut Followed, uid: &str) -> Option<Ticket> {
        followed.follow_pod(uid, |key, serial| Tracked::new(key, serial, Arc::default()))
    }

    #[test]
    fn answers_find_their_owners_wherever_those_are_by_then() {
        let mut followed = Followed::default();
        followed.adopt(&[subject("c", "two"), subject("a", "two"), subject("b", "one")]);
        let ids = |followed: &Followed| followed.containers().map(|t| t.key.id().to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&followed), ["b", "a", "c"]);
        let (one, two) = (pod_of(&mut followed, "one").unwrap(), pod_of(&mut followed, "two").unwrap());
        assert_eq!(pod_of(&mut followed, "two"), None);
        let looks: Vec<Ticket> =
            followed.looks(0, &Arc::default(), |_| true).into_iter().map(|(ticket, _)| ticket).collect();
        assert_eq!(looks.len(), 5);
        assert!(followed.looks(0, &Arc::default(), |_| true).is_empty(), "all are under way");
        let again = Subject { pid: 7, ..subject("a", "two") };
        let gone = followed.adopt(&[subject("0", "one"), again, subject("c", "two"), subject("9", "zero")]);
        assert_eq!(gone.iter().map(|t| &**t.key.id()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(ids(&followed), ["0", "a", "c", "9"]);
        let found: Vec<Option<String>> =
            looks.iter().map(|ticket| followed.of(*ticket).map(|t| t.key.id().to_string())).collect();
        let found: Vec<Option<&str>> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [None, None, Some("c"), Some("one"), Some("two")], "b is gone, a is another by now");
        followed.forget_pods(|pod| **pod.key.id() == *"one");
        assert!(followed.of(one).is_none() && followed.of(two).is_some_and(|t| **t.key.id() == *"two"));
        assert!(followed.find("9").is_some() && followed.find("two").is_some() && followed.find("b").is_none());
        followed.adopt(&[]);
        assert!(followed.of(two).is_none() && followed.all_mut().next().is_none());
    }

    #[test]
    fn what_was_late_comes_last() {
        let mut followed = Followed::default();
        followed.adopt(&[subject("a", ""), subject("b", ""), subject("c", "")]);
        followed.all_mut().find(|t| **t.key.id() == *"a").unwrap().slow = true;
        let looks = followed.looks(0, &Arc::default(), |_| true);
        let order: Vec<usize> = looks.into_iter().map(|(ticket, _)| ticket.place).collect();
        assert_eq!(order, [1, 2, 0]);
    }
}
