//! The tasks of the pods' workers. Each exit is reported with the pod's uid, whatever its cause, so that a worker that
//! panicked is replaced.

use std::collections::HashMap;

use tokio::task::{Id, JoinSet};

use crate::pods::worker::WorkerExit;

/// How a worker's task ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TaskExit {
    Returned(WorkerExit),
    /// The panic's message.
    Panicked(String),
}

/// The tasks that run.
#[derive(Debug, Default)]
pub(super) struct WorkerSet {
    tasks: JoinSet<WorkerExit>,
    uids: HashMap<Id, String>,
}

impl WorkerSet {
    pub(super) fn spawn(&mut self, uid: String, worker: impl Future<Output = WorkerExit> + Send + 'static) {
        let task = self.tasks.spawn(worker);
        self.uids.insert(task.id(), uid);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next exit of a worker; `None` when none runs.
    pub(super) async fn next_exit(&mut self) -> Option<(String, TaskExit)> {
        let (id, exit) = match self.tasks.join_next_with_id().await? {
            Ok((id, exit)) => (id, TaskExit::Returned(exit)),
            Err(error) => (error.id(), TaskExit::Panicked(error.to_string())),
        };
        Some((self.uids.remove(&id).unwrap_or_default(), exit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_exit_is_reported_with_its_pod() {
        let mut workers = WorkerSet::default();
        for (uid, exit) in [("a", Some(WorkerExit::Finished)), ("b", None), ("c", Some(WorkerExit::Shutdown))] {
            workers.spawn(uid.to_owned(), async move { exit.expect("a mistake") });
        }
        let mut exits = Vec::new();
        while let Some(exit) = workers.next_exit().await {
            exits.push(exit);
        }
        assert!(workers.is_empty() && workers.uids.is_empty());
        exits.sort_by(|a, b| a.0.cmp(&b.0));
        let [(a, finished), (b, TaskExit::Panicked(why)), (c, shutdown)] = exits.as_slice() else {
            panic!("{exits:?}")
        };
        assert_eq!((a.as_str(), b.as_str(), c.as_str()), ("a", "b", "c"));
        let returned = [WorkerExit::Finished, WorkerExit::Shutdown].map(TaskExit::Returned);
        assert_eq!([finished, shutdown], [&returned[0], &returned[1]]);
        assert!(why.contains("a mistake"), "{why}");
    }
}
