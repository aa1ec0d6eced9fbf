//! Waits for a container's end, by its id: changes of other containers wake no waiter.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{RunningContainers, engine::Engine};

/// How often Docker is asked for a container that is not listed: one that has just started, or has exited.
const UNLISTED_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Above this number of notices, those without waiters are swept.
const MAX_FORGOTTEN: usize = 64;

/// By the id of a container.
type Notices = Mutex<HashMap<String, Weak<Notify>>>;

/// Ends of containers. Clones share one task, which stops when the containers are no longer published.
#[derive(Debug, Clone)]
pub struct Exits {
    containers: RunningContainers,
    waiting: Arc<Notices>,
}

impl Exits {
    /// Must be called within a runtime.
    #[must_use]
    pub fn of(containers: RunningContainers) -> Self {
        let waiting: Arc<Notices> = Arc::default();
        let (mut changes, told) = (containers.follow(), Arc::clone(&waiting));
        tokio::spawn(async move {
            while let Some(changes) = changes.changed().await {
                let ended = changes.iter().filter(|(_, target)| target.is_none()).map(|(id, _)| &**id);
                tell(&told, ended);
            }
            // The containers are no longer published.
            let all: Vec<String> = told.lock().keys().cloned().collect();
            tell(&told, all.iter().map(String::as_str));
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
            if self.containers.get(id).is_none() || self.containers.is_closed() {
                return true;
            }
            told.await;
        }
    }

    fn notice_of(&self, id: &str) -> Arc<Notify> {
        let mut all = self.waiting.lock();
        let known = all.get(id).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let notice = Arc::new(Notify::new());
            all.insert(id.to_owned(), Arc::downgrade(&notice));
            notice
        })
    }
}

/// Wakes those whose containers have ended.
fn tell<'a>(waiting: &Notices, ended: impl Iterator<Item = &'a str>) {
    let mut all = waiting.lock();
    for id in ended {
        if let Some(notice) = all.remove(id).as_ref().and_then(Weak::upgrade) {
            notice.notify_waiters();
        }
    }
    // Those who have gone without an end; when there are many, so that the look at all of them is rare.
    if all.len() > MAX_FORGOTTEN {
        all.retain(|_, notice| notice.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use windlass_cadvisor::Target;
    use windlass_kit::published_map::Publisher;

    use super::*;
    use crate::engine::fake;

    fn set(publisher: &Publisher<Arc<str>, Arc<Target>>, ids: &[&str]) {
        publisher.replace(ids.iter().map(|id| (Arc::from(*id), Arc::default())).collect());
    }

    #[tokio::test]
    async fn only_the_end_of_its_own_container_wakes_who_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let engine = fake::scripted(dir.path(), move |line| {
            lines.send(line.to_owned()).unwrap();
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}".to_owned()
        });
        let publish = Publisher::default();
        set(&publish, &["a", "b"]);
        let exits = Exits::of(publish.subscribe());
        let waiting = tokio::spawn(exits.clone().of_container(engine.clone(), "a".to_owned()));
        for _ in 0..20 {
            set(&publish, &["a"]);
            tokio::time::sleep(Duration::from_millis(1)).await;
            set(&publish, &["a", "b"]);
        }
        assert!(!waiting.is_finished() && asked.try_recv().is_err(), "nothing was asked");
        set(&publish, &["b"]);
        waiting.await.unwrap();
        assert!(asked.try_recv().unwrap().contains("/containers/a/json"));
        // One that was never listed.
        exits.of_container(engine, "c".to_owned()).await;
    }
}
