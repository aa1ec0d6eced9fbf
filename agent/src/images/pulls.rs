//! Image pulls: parallel up to a limit, and shared by all callers that want the same image with the same credentials.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use bollard::auth::DockerCredentials;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use crate::engine::{Cause, Engine, EngineError, images::PullStatus};

/// Progress of one pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullProgress {
    /// The image as pods name it.
    pub image: String,
    /// When it was requested.
    pub since: Timestamp,
    /// It waits for other pulls.
    pub waiting: bool,
    /// Bytes downloaded.
    pub bytes: u64,
    /// Bytes of the layers whose download has started.
    pub of_bytes: u64,
    /// Layers that are complete.
    pub layers: usize,
    /// Layers of the image, as far as known.
    pub of_layers: usize,
}

/// All pulls in progress, by number.
pub type PullsInProgress = BTreeMap<u64, PullProgress>;

/// A pull in progress that callers await.
type SharedPull = Shared<BoxFuture<'static, Result<Pulled, EngineError>>>;

/// A successful pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// How long it took, without waiting for other pulls.
    pub(crate) took: Duration,
    /// The index of the credentials that the registry accepted, if any were presented.
    pub(crate) with: Option<usize>,
}

/// The key by which pulls are shared: the image and the credentials. Never printed.
type Key = (String, Vec<[Option<String>; 5]>);

/// Clones share the same pulls.
#[derive(Clone)]
pub(crate) struct Pulls(Arc<Inner>);

struct Inner {
    engine: Engine,
    /// For news of a download.
    deadline: Duration,
    slots: Semaphore,
    in_progress: Mutex<HashMap<Key, (u64, SharedPull)>>,
    progress: watch::Sender<PullsInProgress>,
    serial: std::sync::atomic::AtomicU64,
}

impl std::fmt::Debug for Pulls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulls").field("progress", &*self.0.progress.borrow()).finish_non_exhaustive()
    }
}

fn key(name: &str, credentials: &[DockerCredentials]) -> Key {
    let one = |c: &DockerCredentials| {
        [&c.username, &c.password, &c.serveraddress, &c.identitytoken, &c.registrytoken].map(Clone::clone)
    };
    (name.to_owned(), credentials.iter().map(one).collect())
}

impl Pulls {
    pub(super) fn new(engine: Engine, parallel: usize, deadline: Duration) -> Self {
        Self(Arc::new(Inner {
            engine,
            deadline,
            slots: Semaphore::new(parallel.max(1)),
            in_progress: Mutex::default(),
            progress: watch::Sender::default(),
            serial: std::sync::atomic::AtomicU64::new(0),
        }))
    }

    pub(crate) fn progress(&self) -> watch::Receiver<PullsInProgress> {
        self.0.progress.subscribe()
    }

    /// Pulls an image with the first of `credentials` that the registry accepts, or anonymously without any. Concurrent
    /// callers that want the same share this pull's result. A pull continues even if all callers are dropped.
    pub(crate) async fn pull(&self, name: &str, credentials: Vec<DockerCredentials>) -> Result<Pulled, EngineError> {
        let waiting = {
            let mut in_progress = self.0.in_progress.lock();
            let key = key(name, &credentials);
            match in_progress.get(&key) {
                Some((_, waiting)) => waiting.clone(),
                None => {
                    let number = self.0.serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let waiting = self.begin(number, key.clone(), name.to_owned(), credentials);
                    in_progress.insert(key, (number, waiting.clone()));
                    waiting
                }
            }
        };
        waiting.await
    }

    fn begin(&self, number: u64, key: Key, name: String, credentials: Vec<DockerCredentials>) -> SharedPull {
        let inner = Arc::clone(&self.0);
        let aborted = EngineError {
            attempt: format!("failed to pull image {name:?}"),
            reason: "the pull was aborted".to_owned(),
            cause: Cause::Failed,
        };
        let task = tokio::spawn(async move {
            let result = inner.run(number, &name, &credentials).await;
            inner.progress.send_modify(|all| drop(all.remove(&number)));
            let mut in_progress = inner.in_progress.lock();
            in_progress.remove(&key);
            result
        });
        task.map(|ended| ended.unwrap_or(Err(aborted))).boxed().shared()
    }
}

impl Inner {
    async fn run(&self, number: u64, name: &str, credentials: &[DockerCredentials]) -> Result<Pulled, EngineError> {
        let begun = PullProgress {
            image: name.to_owned(),
            since: Timestamp::now(),
            waiting: true,
            bytes: 0,
            of_bytes: 0,
            layers: 0,
            of_layers: 0,
        };
        self.progress.send_modify(|all| drop(all.insert(number, begun)));
        let _slot = self.slots.acquire().await;
        let started = Instant::now();
        let mut layers = Layers::default();
        let mut update = |message: PullStatus| {
            layers.apply(message);
            self.progress.send_modify(|all| {
                if let Some(progress) = all.get_mut(&number) {
                    layers.write_to(progress);
                }
            });
        };
        update(PullStatus::default());
        let (mut result, mut with) = (Ok(()), None);
        let all = credentials.iter().enumerate().map(Some).chain(credentials.is_empty().then_some(None));
        for shown in all {
            with = shown.map(|(index, _)| index);
            result = self.engine.pull_image(name, shown.map(|(_, one)| one.clone()), self.deadline, &mut update).await;
            match &result {
                Err(error) if !error.is_unreachable() => {}
                _ => break,
            }
        }
        result.map(|()| Pulled { took: started.elapsed(), with })
    }
}

/// The state of each layer, from Docker's progress messages.
#[derive(Debug, Default)]
struct Layers(BTreeMap<String, Layer>);

#[derive(Debug, Default, Clone, Copy)]
struct Layer {
    bytes: u64,
    of_bytes: u64,
    complete: bool,
}

impl Layers {
    fn apply(&mut self, message: PullStatus) {
        // Messages about the whole image, such as its digest, belong to no layer.
        let layer = match message.status.as_str() {
            "Pulling fs layer" | "Waiting" | "Downloading" | "Verifying Checksum" | "Download complete"
            | "Extracting" | "Pull complete" | "Already exists" => self.0.entry(message.layer).or_default(),
            _ => return,
        };
        match message.status.as_str() {
            "Downloading" => (layer.bytes, layer.of_bytes) = (message.bytes, message.of_bytes.max(message.bytes)),
            "Download complete" | "Extracting" => layer.bytes = layer.of_bytes,
            "Pull complete" | "Already exists" => (layer.bytes, layer.complete) = (layer.of_bytes, true),
            _ => {}
        }
    }

    fn write_to(&self, progress: &mut PullProgress) {
        progress.waiting = false;
        progress.bytes = self.0.values().map(|l| l.bytes).sum();
        progress.of_bytes = self.0.values().map(|l| l.of_bytes).sum();
        progress.layers = self.0.values().filter(|l| l.complete).count();
        progress.of_layers = self.0.len();
    }
}

impl PullProgress {
    /// For display: `12.5 MiB of 340.0 MiB, 3 of 7 layers in place`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a tenth of a MiB is exact enough")]
    pub fn summary(&self) -> String {
        if self.waiting {
            return "waiting for other pulls".to_owned();
        }
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        format!("{} of {}, {} of {} layers in place", mib(self.bytes), mib(self.of_bytes), self.layers, self.of_layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_add_up() {
        let mut layers = Layers::default();
        let message = |layer: &str, status: &str, bytes, of_bytes| PullStatus {
            layer: layer.to_owned(),
            status: status.to_owned(),
            bytes,
            of_bytes,
        };
        for line in [
            message("latest", "Pulling from library/nginx", 0, 0),
            message("a", "Already exists", 0, 0),
            message("b", "Pulling fs layer", 0, 0),
            message("c", "Downloading", 1 << 20, 4 << 20),
            message("b", "Downloading", 2 << 20, 2 << 20),
            message("b", "Download complete", 0, 0),
            message("b", "Extracting", 5, 2 << 20),
            message("", "Digest: sha256:00", 0, 0),
        ] {
            layers.apply(line);
        }
        let mut progress = PullProgress {
            image: "nginx".into(),
            since: Timestamp::UNIX_EPOCH,
            waiting: true,
            bytes: 0,
            of_bytes: 0,
            layers: 0,
            of_layers: 0,
        };
        assert_eq!(progress.summary(), "waiting for other pulls");
        layers.write_to(&mut progress);
        assert_eq!(progress.summary(), "3.0 MiB of 6.0 MiB, 1 of 3 layers in place");
        layers.apply(message("c", "Pull complete", 0, 0));
        layers.write_to(&mut progress);
        assert_eq!(progress.summary(), "6.0 MiB of 6.0 MiB, 2 of 3 layers in place");
    }

    #[test]
    fn other_credentials_are_another_pull() {
        let shown =
            |password: &str| DockerCredentials { password: Some(password.into()), ..DockerCredentials::default() };
        assert!(key("i", &[shown("a")]) == key("i", &[shown("a")]));
        assert!(key("i", &[shown("a")]) != key("i", &[shown("b")]));
        assert!(key("i", &[]) != key("j", &[]));
    }
}
