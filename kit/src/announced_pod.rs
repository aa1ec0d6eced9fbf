//! What the pod network announces of a pod before the pod's link goes up, so that NetworkPolicies are in force for its
//! first packet: agent and proxy know nothing of each other, and both know this.

use std::{collections::BTreeMap, net::IpAddr};

use tokio::sync::{mpsc, oneshot};

/// A pod that is about to use addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnouncedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, which its interface on the host is named by.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its ports that have names: name, protocol as the API spells it, number.
    pub ports: Vec<(String, String, u16)>,
    /// Its addresses, of both families.
    pub addresses: Vec<IpAddr>,
}

/// What is said of a pod.
#[derive(Debug)]
pub enum Announcement {
    /// It waits until rules are in force for its addresses, or for the reason why they are not.
    Starts(AnnouncedPod, oneshot::Sender<Result<(), String>>),
    /// The addresses of the pod of this uid are free again.
    Ended(String),
}

/// The pod network's end.
#[derive(Debug, Clone)]
pub struct Announcer(mpsc::UnboundedSender<Announcement>);

/// The other end.
pub type Announcements = mpsc::UnboundedReceiver<Announcement>;

/// Both ends.
#[must_use]
pub fn channel() -> (Announcer, Announcements) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Announcer(sender), receiver)
}

impl Announcer {
    /// Announces a pod. What is returned ends once the rules of NetworkPolicies are in force for it, or with the reason
    /// why they are not: a pod must not start then. The caller limits the time.
    pub fn starts(&self, pod: AnnouncedPod) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        // Without a receiver the reply is dropped.
        let _ = self.0.send(Announcement::Starts(pod, reply));
        async move {
            let ended = || Err("the service proxy, which writes the rules of NetworkPolicies, has ended".to_owned());
            answer.await.unwrap_or_else(|_| ended())
        }
    }

    /// The addresses of the pod of this uid are free again.
    pub fn ended(&self, uid: &str) {
        let _ = self.0.send(Announcement::Ended(uid.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pod_waits_for_the_answer_and_not_for_one_that_never_comes() {
        let (announcer, mut announcements) = channel();
        let start = announcer.starts(AnnouncedPod::default());
        announcer.ended("u");
        let Some(Announcement::Starts(pod, reply)) = announcements.recv().await else { panic!() };
        assert_eq!(pod, AnnouncedPod::default());
        assert!(matches!(announcements.recv().await, Some(Announcement::Ended(uid)) if uid == "u"));
        reply.send(Ok(())).unwrap();
        assert_eq!(start.await, Ok(()));
        let unanswered = announcer.starts(AnnouncedPod::default());
        drop(announcements.recv().await);
        assert!(unanswered.await.unwrap_err().contains("has ended"));
        drop(announcements);
        assert!(announcer.starts(AnnouncedPod::default()).await.is_err());
    }
}
