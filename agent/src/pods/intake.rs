//! Pods that are new to the node: taken in, refused, or kept waiting while room is made for them.

use windlass_kit::events::Severity;

use super::{admission::Claim, allocated::Allocated, *};

impl Dispatcher {
    /// Whether the node refuses a pod that is new to it; what it takes in is taken note of.
    pub(super) fn admit(&self, uid: &str, pod: &Pod, is_new: bool) -> Admission {
        if spec::is_terminal(spec::phase(pod)) || pod.metadata.deletion_timestamp.is_some() {
            return Admission::TakenIn;
        }
        if !is_new {
            // What it was allocated counts, and not what was wished for since.
            let allocated = Allocated::read(&self.shared.pod_dir(uid));
            let claim = allocated.map_or_else(|| Claim::of(pod), |allocated| Claim::of(&allocated.applied_to(pod)));
            self.shared.hold(uid, Some(claim));
            return Admission::TakenIn;
        }
        let admission = self.shared.admit(uid, pod, !self.room_made.contains(uid));
        if let Admission::Refused(refused) = &admission {
            self.shared.metrics.rejections.add([refused.reason.as_str()]);
            self.shared.event(pod, None, Severity::Warning, &refused.reason, refused.message.clone());
        }
        admission
    }

    /// Ends the pods that a critical one needs to be gone; it is judged again when they are.
    pub(super) fn make_room(&mut self, uid: &str, victims: Vec<String>) {
        let ended = Ended {
            reason: "Preempting".to_owned(),
            message: "Preempted in order to admit critical pod".to_owned(),
            grace: None,
            disruption: true,
        };
        for pod in victims.iter().filter_map(|victim| self.sources.api.get(victim)) {
            self.shared.metrics.preemptions.add(["resources"]);
            self.shared.event(pod, None, Severity::Warning, &ended.reason, ended.message.clone());
        }
        self.making_room.insert(uid.to_owned());
        self.room_made.insert(uid.to_owned());
        let (orders, uid) = (self.shared.orders.clone(), uid.to_owned());
        self.rooms.spawn(async move {
            futures::future::join_all(victims.iter().map(|victim| orders.end(victim, ended.clone()))).await;
            uid
        });
    }

    pub(super) fn room_is_made(&mut self, uid: &str) {
        self.making_room.remove(uid);
        if let Some(wish) = self.sources.wish(uid) {
            self.wish(uid, wish);
        }
    }
}
