//! Who waits for the end of a container, by its id: a change of another one wakes nobody.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::{ContainerRecord, engine::Engine};

/// How often Docker is asked for a container that is not listed: one that has just started, or has exited.
const UNLISTED_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Running containers.
type Records = Arc<Vec<ContainerRecord>>;

/// By the id of a container.
type Notices = Mutex<HashMap<String, Weak<Notify>>>;

/// Ends of containers. Clones share one task, which ends when nobody publishes containers any more.
#[derive(Debug, Clone)]
pub struct Exits {
    containers: watch::Receiver<Records>,
    waiting: Arc<Notices>,
}

fn lock(waiting: &Notices) -> MutexGuard<'_, HashMap<String, Weak<Notify>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exits {
    /// Must be called within a runtime.
    #[must_use]
    pub fn of(containers: watch::Receiver<Records>) -> Self {
        let waiting: Arc<Notices> = Arc::default();
        let (mut changes, told) = (containers.clone(), Arc::clone(&waiting));
        tokio::spawn(async move {
            loop {
                let open = changes.changed().await.is_ok();
                let running = if open { Arc::clone(&changes.borrow_and_update()) } else { Records::default() };
                tell(&told, &running);
                if !open {
                    return;
                }
            }
        });
        Self { containers, waiting }
    }

    /// Waits until a container has exited.
    pub(super) async fn of_container(self, engine: Engine, id: String) {
        loop {
            if self.unlisted(&id).await {
                let location = engine.log_location(&id).await;
                if location.map_or_else(|error| error.is_not_found(), |location| !location.running) {
                    return;
                }
                // It has just started, or Docker is away.
                tokio::time::sleep(UNLISTED_POLL_INTERVAL).await;
            }
        }
    }

    /// Waits until a container is not listed; always true.
    async fn unlisted(&self, id: &str) -> bool {
        loop {
            let notice = self.notice_of(id);
            // Registered before the list is read, so that no end is missed.
            let mut told = std::pin::pin!(notice.notified());
            told.as_mut().enable();
            if !self.containers.borrow().iter().any(|record| record.id == id) || self.containers.has_changed().is_err()
            {
                return true;
            }
            told.await;
        }
    }

    fn notice_of(&self, id: &str) -> Arc<Notify> {
        let mut all = lock(&self.waiting);
        let known = all.get(id).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let notice = Arc::new(Notify::new());
            all.insert(id.to_owned(), Arc::downgrade(&notice));
            notice
        })
    }
}

/// Wakes those whose container is not among these.
fn tell(waiting: &Notices, running: &[ContainerRecord]) {
    let mut all = lock(waiting);
    all.retain(|_, notice| notice.strong_count() > 0);
    if all.is_empty() {
        return;
    }
    let running: HashSet<&str> = running.iter().map(|record| record.id.as_str()).collect();
    for (_, notice) in all.iter().filter(|(id, _)| !running.contains(id.as_str())) {
        if let Some(notice) = notice.upgrade() {
            notice.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake;

    fn record(id: &str) -> ContainerRecord {
        ContainerRecord {
            id: id.to_owned(),
            pid: 1,
            docker_name: String::new(),
            image: String::new(),
            pod_name: String::new(),
            pod_namespace: String::new(),
            pod_uid: String::new(),
            container_name: String::new(),
            is_sandbox: false,
            started_at: jiff::Timestamp::UNIX_EPOCH,
            cpu_shares: 0,
            limits: Vec::new(),
        }
    }

    fn records(ids: &[&str]) -> Records {
        Arc::new(ids.iter().map(|id| record(id)).collect())
    }

    #[tokio::test]
    async fn only_the_end_of_its_own_container_wakes_who_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let engine = fake::scripted(dir.path(), move |line| {
            lines.send(line.to_owned()).unwrap();
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}".to_owned()
        });
        let (publish, containers) = watch::channel(records(&["a", "b"]));
        let exits = Exits::of(containers);
        let waiting = tokio::spawn(exits.clone().of_container(engine.clone(), "a".to_owned()));
        for _ in 0..20 {
            publish.send_replace(records(&["a"]));
            tokio::time::sleep(Duration::from_millis(1)).await;
            publish.send_replace(records(&["a", "b"]));
        }
        assert!(!waiting.is_finished() && asked.try_recv().is_err(), "nothing was asked");
        publish.send_replace(records(&["b"]));
        waiting.await.unwrap();
        assert!(asked.try_recv().unwrap().contains("/containers/a/json"));
        // One that was never listed.
        exits.of_container(engine, "c".to_owned()).await;
    }
}
