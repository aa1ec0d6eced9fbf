//! Images: is it there, and pulling it, once at a time for each name.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use bollard::{auth::DockerCredentials, models::ContainerCreateBody, query_parameters::CreateImageOptions};
use futures::StreamExt as _;
use tokio::sync::Mutex;

use super::{Engine, EngineError};

/// An image in Docker's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// `sha256:…`: what containers are made from, so that a moving tag cannot race.
    pub(crate) id: String,
    /// The user that its containers run as unless told otherwise.
    pub(crate) user: String,
    pub(crate) size: i64,
}

/// Pulls in flight, by image name: a second pod that wants the same image waits for the first pull.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulls {
    by_name: Arc<std::sync::Mutex<HashMap<String, Arc<Mutex<()>>>>>,
}

/// A pull with no progress for this long is given up; cri-dockerd's limit.
const STALLED: Duration = Duration::from_secs(60);

impl Engine {
    /// The image of a name, or `None` when it is not in the store.
    pub(crate) async fn image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        match self.docker().inspect_image(name).await {
            Ok(found) => Ok(Some(Image {
                id: found.id.unwrap_or_default(),
                user: found.config.and_then(|c| c.user).unwrap_or_default(),
                size: found.size.unwrap_or(0),
            })),
            Err(error) => {
                let error = EngineError::new(format!("image {name:?} could not be looked up"), &error);
                if error.is_not_found() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// The files of an image, as a tar archive that comes in pieces.
    ///
    /// # Errors
    /// When Docker refuses; later errors come in the stream. The container that this needs is removed by whoever
    /// reads, with [`Engine::remove`].
    pub(crate) async fn files_of_image(
        &self,
        id: &str,
        name: &str,
    ) -> Result<impl futures::Stream<Item = Result<bytes::Bytes, EngineError>> + Send + use<>, EngineError> {
        // Never started: a command is asked for all the same.
        let body = ContainerCreateBody {
            image: Some(id.to_owned()),
            cmd: Some(vec!["none".to_owned()]),
            ..ContainerCreateBody::default()
        };
        let made = self.create(name, body).await?;
        let files = self.docker().export_container(&made);
        Ok(files.map(|piece| piece.map_err(|e| EngineError::new("the files of an image could not be read", &e))))
    }

    /// Pulls an image with the first of `credentials` that the registry takes, or as nobody where there are none.
    /// Several callers of the same name share the work: each pull after the first finds the layers in place.
    pub(crate) async fn pull(
        &self,
        pulls: &Pulls,
        name: &str,
        credentials: &[DockerCredentials],
    ) -> Result<(), EngineError> {
        let turn = {
            let mut by_name = pulls.by_name.lock().unwrap_or_else(PoisonError::into_inner);
            by_name.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(by_name.entry(name.to_owned()).or_default())
        };
        let _turn = turn.lock().await;
        let mut result = Ok(());
        for shown in credentials.iter().map(Some).chain(credentials.is_empty().then_some(None)) {
            result = self.pull_as(name, shown.cloned()).await;
            match &result {
                Err(error) if !error.is_unreachable() => {}
                _ => return result,
            }
        }
        result
    }

    async fn pull_as(&self, name: &str, credentials: Option<DockerCredentials>) -> Result<(), EngineError> {
        let attempt = || format!("failed to pull image {name:?}");
        let options = CreateImageOptions { from_image: Some(with_tag(name)), ..CreateImageOptions::default() };
        let mut progress = Box::pin(self.docker().create_image(Some(options), None, credentials));
        loop {
            let line = tokio::time::timeout(STALLED, progress.next()).await.map_err(|_| EngineError {
                attempt: attempt(),
                reason: format!("no progress for {} s", STALLED.as_secs()),
                status: Some(504),
            })?;
            match line {
                None => return Ok(()),
                Some(Ok(line)) => {
                    if let Some(error) = line.error_detail.and_then(|e| e.message) {
                        return Err(EngineError { attempt: attempt(), reason: error, status: Some(500) });
                    }
                }
                Some(Err(error)) => return Err(EngineError::new(attempt(), &error)),
            }
        }
    }
}

/// Docker pulls every tag of a name without one.
fn with_tag(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') || name.contains('@') { name.to_owned() } else { format!("{name}:latest") }
}

#[cfg(test)]
mod tests {
    use super::with_tag;

    #[test]
    fn a_name_without_a_tag_means_latest() {
        for (name, wanted) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("host:5000/nginx", "host:5000/nginx:latest"),
            ("host:5000/nginx:2", "host:5000/nginx:2"),
            ("nginx@sha256:00", "nginx@sha256:00"),
        ] {
            assert_eq!(with_tag(name), wanted);
        }
    }
}
