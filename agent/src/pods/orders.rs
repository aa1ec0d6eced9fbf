//! Orders of the node to end a pod that the API would let run: eviction, preemption, shutdown.
//!
//! An order goes through the dispatcher to the pod's worker, which keeps it beside what else it knows; `plan` ends the
//! pod by it and `status` tells why once nothing runs any more.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Why and how the node ends a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Upstream's word for it, shown as the pod's reason: `Evicted`, `Preempting`, `Terminated`.
    pub reason: String,
    /// For people; shown as the pod's message.
    pub message: String,
    /// Seconds that containers have; `None` for the pod's own. A longer time than the pod's own is not given.
    pub grace: Option<i64>,
    /// Whether the pod is told to have been disrupted (condition `DisruptionTarget`): it is not to blame for its end.
    pub disruption: bool,
}

/// What became of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Every container of the pod is down.
    Down,
    /// The pod was over already, or is not on this node: it was left alone.
    Over,
    /// Something still ran after half as much again as the grace; it goes on being stopped.
    Late,
    /// The agent ends.
    Lost,
}

/// What is asked of the dispatcher.
#[derive(Debug)]
pub(crate) enum Asked {
    End(Order),
    /// Answered when all workers know.
    DropDead(oneshot::Sender<()>),
}

/// One order on its way.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) uid: String,
    pub(crate) ended: Ended,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// Where orders arrive.
#[derive(Debug)]
pub struct Inbox(mpsc::Receiver<Asked>);

impl Inbox {
    pub(crate) async fn next(&mut self) -> Option<Asked> {
        self.0.recv().await
    }
}

/// Ends pods of this node. Clones lead to the same pods.
#[derive(Debug, Clone)]
pub struct Orders(mpsc::Sender<Asked>);

impl Orders {
    /// The handle, and the inbox that [`run`](super::run) reads.
    #[must_use]
    pub fn new() -> (Self, Inbox) {
        let (tell, told) = mpsc::channel(64);
        (Self(tell), Inbox(told))
    }

    /// Ends the pod with this uid and waits until its containers are down, for half as much again as its grace and at
    /// least ten seconds, as upstream does. A second order for the same pod can only shorten its grace.
    pub async fn end(&self, uid: &str, ended: Ended) -> Answer {
        let (answer, answered) = oneshot::channel();
        let order = Order { uid: uid.to_owned(), ended, answer };
        if self.0.send(Asked::End(order)).await.is_err() {
            return Answer::Lost;
        }
        answered.await.unwrap_or(Answer::Lost)
    }

    /// Removes the dead containers of pods that are over, with their logs: the disk is short. Those of pods that go on
    /// stay, one each, as the pods' statuses are made of them.
    pub async fn drop_dead(&self) {
        let (answer, answered) = oneshot::channel();
        if self.0.send(Asked::DropDead(answer)).await.is_ok() {
            let _ = answered.await;
        }
    }
}

/// How long whoever gave an order waits for its end.
pub(crate) fn patience(grace: i64) -> Duration {
    let seconds = u64::try_from(grace).unwrap_or(0);
    Duration::from_secs((seconds + seconds / 2).max(10))
}

/// The grace of a pod under an order: the shorter of its own and the order's, which is a second at least.
pub(crate) fn grace(own: i64, ended: Option<&Ended>) -> i64 {
    ended.and_then(|e| e.grace).map_or(own, |asked| own.min(asked.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_only_shortens() {
        let ended = |grace| Ended { reason: String::new(), message: String::new(), grace, disruption: false };
        for (own, asked, gives) in [
            (30, None, 30),
            (30, Some(1), 1),
            (30, Some(0), 1),
            (30, Some(60), 30),
            (0, Some(60), 0),
            (30, Some(-5), 1),
        ] {
            assert_eq!(grace(own, Some(&ended(asked))), gives, "{own} {asked:?}");
        }
        assert_eq!(grace(7, None), 7);
        assert_eq!((patience(0).as_secs(), patience(30).as_secs()), (10, 45));
    }
}
