//! The tasks of the pods' workers. Each end is told with the pod's uid, however it came, so that a worker that is lost
//! is replaced and its pod is not forgotten.

use std::collections::HashMap;

use tokio::task::{Id, JoinSet};

use super::worker::End;

/// How a worker's task ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As it meant to.
    As(End),
    /// By a mistake in it: what it said.
    Lost(String),
}

/// The tasks that run.
#[derive(Debug, Default)]
pub(super) struct Crew {
    tasks: JoinSet<End>,
    uids: HashMap<Id, String>,
}

impl Crew {
    pub(super) fn spawn(&mut self, uid: String, worker: impl Future<Output = End> + Send + 'static) {
        let task = self.tasks.spawn(worker);
        self.uids.insert(task.id(), uid);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next end of a worker; `None` when none runs.
    pub(super) async fn next_ended(&mut self) -> Option<(String, Ended)> {
        let (id, ended) = match self.tasks.join_next_with_id().await? {
            Ok((id, end)) => (id, Ended::As(end)),
            Err(error) => (error.id(), Ended::Lost(error.to_string())),
        };
        Some((self.uids.remove(&id).unwrap_or_default(), ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_end_is_told_with_its_pod() {
        let mut crew = Crew::default();
        for (uid, end) in [("a", Some(End::Finished)), ("b", None), ("c", Some(End::Shutdown))] {
            crew.spawn(uid.to_owned(), async move { end.expect("a mistake") });
        }
        let mut ends = Vec::new();
        while let Some(ended) = crew.next_ended().await {
            ends.push(ended);
        }
        assert!(crew.is_empty() && crew.uids.is_empty());
        ends.sort_by(|a, b| a.0.cmp(&b.0));
        let [(a, finished), (b, Ended::Lost(why)), (c, shutdown)] = ends.as_slice() else { panic!("{ends:?}") };
        assert_eq!((a.as_str(), b.as_str(), c.as_str()), ("a", "b", "c"));
        assert_eq!((finished, shutdown), (&Ended::As(End::Finished), &Ended::As(End::Shutdown)));
        assert!(why.contains("a mistake"), "{why}");
    }
}
