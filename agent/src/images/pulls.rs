//! Pulls: side by side up to a number, and one for all who want the same image with the same credentials.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bollard::auth::DockerCredentials;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use crate::engine::{Cause, Engine, EngineError, images::LayerNews};

/// How far one pull is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// As pods name it.
    pub image: String,
    /// When it was asked for.
    pub since: Timestamp,
    /// Other pulls are before it.
    pub waiting: bool,
    /// Bytes that are here.
    pub bytes: u64,
    /// Bytes of the layers that Docker has begun.
    pub of_bytes: u64,
    /// Layers that are in place.
    pub layers: usize,
    /// Layers that are known of.
    pub of_layers: usize,
}

/// Every pull under way, by its number.
pub type AllProgress = BTreeMap<u64, Progress>;

/// A pull as those who wait for it see it.
type Waiting = Shared<BoxFuture<'static, Result<Pulled, EngineError>>>;

/// A pull that has worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// How long it took, without waiting for other pulls.
    pub(crate) took: Duration,
    /// Which of the credentials the registry took, where there were any.
    pub(crate) with: Option<usize>,
}

/// What two pulls must have in common to be one: the image, and what registries are shown. Never printed.
type Key = (String, Vec<[Option<String>; 4]>);

/// Clones share the same pulls.
#[derive(Clone)]
pub(crate) struct Pulls(Arc<Inner>);

struct Inner {
    engine: Engine,
    slots: Semaphore,
    under_way: Mutex<HashMap<Key, (u64, Waiting)>>,
    progress: watch::Sender<AllProgress>,
    serial: std::sync::atomic::AtomicU64,
}

impl std::fmt::Debug for Pulls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulls").field("progress", &*self.0.progress.borrow()).finish_non_exhaustive()
    }
}

fn key(name: &str, credentials: &[DockerCredentials]) -> Key {
    let one = |c: &DockerCredentials| {
        [c.username.clone(), c.password.clone(), c.serveraddress.clone(), c.identitytoken.clone()]
    };
    (name.to_owned(), credentials.iter().map(one).collect())
}

impl Pulls {
    pub(super) fn new(engine: Engine, at_once: usize) -> Self {
        Self(Arc::new(Inner {
            engine,
            slots: Semaphore::new(at_once.max(1)),
            under_way: Mutex::default(),
            progress: watch::Sender::default(),
            serial: std::sync::atomic::AtomicU64::new(0),
        }))
    }

    pub(crate) fn progress(&self) -> watch::Receiver<AllProgress> {
        self.0.progress.subscribe()
    }

    /// Pulls an image with the first of `credentials` that the registry takes, or as nobody where there are none. Whoever asks for the same meanwhile is answered by this
    /// one's result. A pull goes on when everybody who waited for it has gone.
    pub(crate) async fn pull(&self, name: &str, credentials: Vec<DockerCredentials>) -> Result<Pulled, EngineError> {
        let waiting = {
            let mut under_way = self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            let key = key(name, &credentials);
            match under_way.get(&key) {
                Some((_, waiting)) => waiting.clone(),
                None => {
                    let number = self.0.serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let waiting = self.begin(number, key.clone(), name.to_owned(), credentials);
                    under_way.insert(key, (number, waiting.clone()));
                    waiting
                }
            }
        };
        waiting.await
    }

    fn begin(&self, number: u64, key: Key, name: String, credentials: Vec<DockerCredentials>) -> Waiting {
        let inner = Arc::clone(&self.0);
        let lost = EngineError {
            attempt: format!("failed to pull image {name:?}"),
            reason: "the pull was broken off".to_owned(),
            cause: Cause::Failed,
        };
        let task = tokio::spawn(async move {
            let result = inner.run(number, &name, &credentials).await;
            inner.progress.send_modify(|all| drop(all.remove(&number)));
            let mut under_way = inner.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            under_way.remove(&key);
            result
        });
        task.map(|ended| ended.unwrap_or(Err(lost))).boxed().shared()
    }
}

impl Inner {
    async fn run(&self, number: u64, name: &str, credentials: &[DockerCredentials]) -> Result<Pulled, EngineError> {
        let begun = Progress {
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
        let mut tell = |news: LayerNews| {
            layers.take(news);
            self.progress.send_modify(|all| {
                if let Some(progress) = all.get_mut(&number) {
                    layers.show(progress);
                }
            });
        };
        tell(LayerNews::default());
        let (mut result, mut with) = (Ok(()), None);
        let all = credentials.iter().enumerate().map(Some).chain(credentials.is_empty().then_some(None));
        for shown in all {
            with = shown.map(|(index, _)| index);
            result = self.engine.pull_as(name, shown.map(|(_, one)| one.clone()), &mut tell).await;
            match &result {
                Err(error) if !error.is_unreachable() => {}
                _ => break,
            }
        }
        result.map(|()| Pulled { took: started.elapsed(), with })
    }
}

/// What Docker has told of each layer.
#[derive(Debug, Default)]
struct Layers(BTreeMap<String, Layer>);

#[derive(Debug, Default, Clone, Copy)]
struct Layer {
    bytes: u64,
    of_bytes: u64,
    in_place: bool,
}

impl Layers {
    fn take(&mut self, news: LayerNews) {
        // Lines of the whole image, such as its digest, are of no layer.
        let layer = match news.status.as_str() {
            "Pulling fs layer" | "Waiting" | "Downloading" | "Verifying Checksum" | "Download complete"
            | "Extracting" | "Pull complete" | "Already exists" => self.0.entry(news.layer).or_default(),
            _ => return,
        };
        match news.status.as_str() {
            "Downloading" => (layer.bytes, layer.of_bytes) = (news.bytes, news.of_bytes.max(news.bytes)),
            "Download complete" | "Extracting" => layer.bytes = layer.of_bytes,
            "Pull complete" | "Already exists" => (layer.bytes, layer.in_place) = (layer.of_bytes, true),
            _ => {}
        }
    }

    fn show(&self, progress: &mut Progress) {
        progress.waiting = false;
        progress.bytes = self.0.values().map(|l| l.bytes).sum();
        progress.of_bytes = self.0.values().map(|l| l.of_bytes).sum();
        progress.layers = self.0.values().filter(|l| l.in_place).count();
        progress.of_layers = self.0.len();
    }
}

impl Progress {
    /// For people: `12.5 MiB of 340.0 MiB, 3 of 7 layers in place`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a tenth of a MiB is exact enough")]
    pub fn words(&self) -> String {
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
        let news = |layer: &str, status: &str, bytes, of_bytes| LayerNews {
            layer: layer.to_owned(),
            status: status.to_owned(),
            bytes,
            of_bytes,
        };
        for line in [
            news("latest", "Pulling from library/nginx", 0, 0),
            news("a", "Already exists", 0, 0),
            news("b", "Pulling fs layer", 0, 0),
            news("c", "Downloading", 1 << 20, 4 << 20),
            news("b", "Downloading", 2 << 20, 2 << 20),
            news("b", "Download complete", 0, 0),
            news("b", "Extracting", 5, 2 << 20),
            news("", "Digest: sha256:00", 0, 0),
        ] {
            layers.take(line);
        }
        let mut progress = Progress {
            image: "nginx".into(),
            since: Timestamp::UNIX_EPOCH,
            waiting: true,
            bytes: 0,
            of_bytes: 0,
            layers: 0,
            of_layers: 0,
        };
        assert_eq!(progress.words(), "waiting for other pulls");
        layers.show(&mut progress);
        assert_eq!(progress.words(), "3.0 MiB of 6.0 MiB, 1 of 3 layers in place");
        layers.take(news("c", "Pull complete", 0, 0));
        layers.show(&mut progress);
        assert_eq!(progress.words(), "6.0 MiB of 6.0 MiB, 2 of 3 layers in place");
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
