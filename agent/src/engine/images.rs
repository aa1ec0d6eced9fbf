//! Docker's image store: look up, list, pull and remove images, and read their files.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Read as _},
    time::Duration,
};

use bollard::{
    Docker,
    auth::DockerCredentials,
    models::ContainerCreateBody,
    query_parameters::{
        CreateImageOptions, DownloadFromContainerOptions, ListContainersOptions, ListImagesOptions, RemoveImageOptions,
    },
};
use futures::{StreamExt as _, TryStreamExt as _};
use windlass_kit::objects::image::Reference;

use super::{
    Cause, Engine, EngineError,
    docker_api::{DOWNLOAD, EXPORT, IMAGE_INSPECT, IMAGE_LIST, IMAGE_REMOVE, PULL},
    names,
};

/// An image in Docker's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// `sha256:…`: containers are created from it, so that a moving tag cannot race.
    pub(crate) id: String,
    /// `registry/path@sha256:…` where it was pulled, else its id: the `imageID` of container statuses.
    pub(crate) shown: String,
    /// The image's default user.
    pub(crate) user: String,
    pub(crate) size: i64,
    /// The image has the requested name; false when it was found by its id alone.
    pub(crate) named: bool,
}

/// An image with all its names, as Docker lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageSummary {
    pub(crate) id: String,
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
    pub(crate) size: i64,
}

/// One progress message of a pull, in Docker's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PullStatus {
    pub(crate) layer: String,
    pub(crate) status: String,
    pub(crate) bytes: u64,
    pub(crate) of_bytes: u64,
}

/// The same for a pull that only unpacks: on a slow disk Docker may report no progress for a long time on a large
/// layer.
const UNPACK_DEADLINE: Duration = Duration::from_secs(600);

/// Which layers of a pull are still being fetched, by Docker's progress messages. Pure.
#[derive(Debug, Default)]
struct Fetching {
    layers: BTreeSet<String>,
    any: bool,
}

impl Fetching {
    fn apply(&mut self, news: &PullStatus) {
        let status = news.status.as_str();
        let fetched = ["Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists"];
        if news.layer.is_empty() {
            return;
        }
        if fetched.contains(&status) {
            self.any = true;
            self.layers.remove(&news.layer);
        } else if ["Pulling fs layer", "Waiting", "Downloading"].contains(&status) || status.starts_with("Retrying in")
        {
            self.layers.insert(news.layer.clone());
        }
    }

    /// How long Docker may go without reporting progress.
    fn deadline(&self, of_download: Duration) -> Duration {
        let unpacks = self.any && self.layers.is_empty();
        if unpacks { of_download.max(UNPACK_DEADLINE) } else { of_download }
    }
}

/// Whether the progress so far shows that nothing is being fetched any more.
#[cfg(test)]
pub(super) fn is_followed(told: &[PullStatus]) -> bool {
    let mut fetching = Fetching::default();
    told.iter().for_each(|news| fetching.apply(news));
    fetching.any && fetching.layers.is_empty()
}

/// Limit of what is read of one file of an image.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl Engine {
    /// The image of a name, or `None` when it is not in the store.
    pub(crate) async fn image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let attempt = || format!("image {name:?} could not be looked up");
        let found = self.ask(&IMAGE_INSPECT, attempt, async |docker: Docker| docker.inspect_image(name).await).await?;
        Ok(found.map(|found| Image {
            named: {
                let called = familiar(name);
                found.repo_tags.iter().chain(&found.repo_digests).flatten().any(|known| *known == called)
            },
            shown: shown(name, found.repo_digests.as_deref().unwrap_or(&[]), found.id.as_deref().unwrap_or("")),
            id: found.id.unwrap_or_default(),
            user: found.config.and_then(|c| c.user).unwrap_or_default(),
            size: found.size.unwrap_or(0),
        }))
    }

    /// The files of an image as a tar archive, streamed.
    ///
    /// # Errors
    /// When Docker refuses; later errors come in the stream. The caller removes the helper container with
    /// [`Engine::remove`].
    pub(crate) async fn files_of_image(
        &self,
        id: &str,
        name: &str,
    ) -> Result<impl futures::Stream<Item = Result<bytes::Bytes, EngineError>> + Send + use<>, EngineError> {
        let made = self.create(name, helper_container(id)).await?;
        let files = self.patient(EXPORT.limit).export_container(&made);
        Ok(files.map(|piece| piece.map_err(|e| EngineError::new("the files of an image could not be read", &e))))
    }

    /// The text of one file of an image; `None` when it does not exist, or is no regular file. Docker reads it through
    /// a helper container of this `name`, which is removed again.
    pub(crate) async fn file_of_image(&self, id: &str, name: &str, path: &str) -> Result<Option<String>, EngineError> {
        let made = self.create(name, helper_container(id)).await?;
        let attempt = || format!("{path} of an image could not be read");
        let options = DownloadFromContainerOptions { path: path.to_owned() };
        let download = async |docker: Docker| {
            docker.download_from_container(&made, Some(options)).try_collect::<Vec<bytes::Bytes>>().await
        };
        let read = self.ask(&DOWNLOAD, attempt, download).await;
        self.remove(&made).await?;
        let Some(pieces) = read? else { return Ok(None) };
        single_file(&pieces.concat()).map_err(|e| EngineError {
            attempt: attempt(),
            reason: e.to_string(),
            cause: Cause::Failed,
        })
    }

    /// Every image that is no intermediate layer of another.
    pub(crate) async fn images(&self) -> Result<Vec<ImageSummary>, EngineError> {
        let list = async |docker: Docker| docker.list_images(None::<ListImagesOptions>).await;
        let all = self.get(&IMAGE_LIST, || "images could not be listed".to_owned(), list).await?;
        // Older engines name an image without names `<none>`.
        let named = |names: Vec<String>| names.into_iter().filter(|n| !n.contains("<none>")).collect();
        let stored = all.into_iter().map(|image| ImageSummary {
            id: image.id,
            tags: named(image.repo_tags),
            digests: named(image.repo_digests),
            size: image.size,
        });
        Ok(stored.collect())
    }

    /// The ids of images that containers use, whoever created them, exited containers included.
    pub(crate) async fn images_in_use(&self) -> Result<BTreeSet<String>, EngineError> {
        let options = ListContainersOptions { all: true, ..ListContainersOptions::default() };
        let all = self.listed("containers could not be listed", Some(options)).await?;
        Ok(all.into_iter().filter_map(|container| container.image_id).collect())
    }

    /// Removes an image with all its names, unless a container uses it. One that does not exist is success.
    pub(crate) async fn remove_image(&self, image: &ImageSummary) -> Result<(), EngineError> {
        // Removing the last name removes the image; one without names is removed by its id.
        let names = image.tags.iter().chain(&image.digests).chain([&image.id]);
        for name in names {
            self.remove_image_name(name, || format!("image {name:?} could not be removed")).await?;
        }
        Ok(())
    }

    /// Removes a name of an image, and the image with the last one. One that does not exist is success.
    pub(super) async fn remove_image_name(
        &self,
        name: &str,
        attempt: impl FnOnce() -> String,
    ) -> Result<(), EngineError> {
        let remove = async |docker: Docker| docker.remove_image(name, None::<RemoveImageOptions>, None).await.map(drop);
        self.done(&IMAGE_REMOVE, attempt, remove).await
    }

    /// Pulls an image, anonymously without credentials, and reports progress; gives up when the download makes no
    /// progress for `deadline`.
    pub(crate) async fn pull_image(
        &self,
        name: &str,
        credentials: Option<DockerCredentials>,
        deadline: Duration,
        on_progress: &mut (dyn FnMut(PullStatus) + Send),
    ) -> Result<(), EngineError> {
        let attempt = || format!("failed to pull image {name:?}");
        let options = CreateImageOptions { from_image: Some(familiar(name)), ..CreateImageOptions::default() };
        let mut progress = Box::pin(self.patient(PULL.limit).create_image(Some(options), None, credentials));
        let mut fetching = Fetching::default();
        loop {
            let deadline = fetching.deadline(deadline);
            let line = tokio::time::timeout(deadline, progress.next()).await.map_err(|_| EngineError {
                attempt: attempt(),
                reason: format!("no progress for {} s", deadline.as_secs()),
                cause: Cause::Failed,
            })?;
            match line {
                None => return Ok(()),
                Some(Ok(line)) => {
                    let bytes = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
                    let progress = line.progress_detail;
                    let news = PullStatus {
                        layer: line.id.unwrap_or_default(),
                        status: line.status.unwrap_or_default(),
                        bytes: bytes(progress.as_ref().and_then(|p| p.current)),
                        of_bytes: bytes(progress.as_ref().and_then(|p| p.total)),
                    };
                    fetching.apply(&news);
                    on_progress(news);
                }
                Some(Err(error)) => return Err(EngineError::new(attempt(), &error)),
            }
        }
    }
}

/// A helper container, which gives access to the files of its image. It is never started, but Docker requires a
/// command.
fn helper_container(image: &str) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(image.to_owned()),
        cmd: Some(vec!["none".to_owned()]),
        // Finds helpers that a crash has left behind.
        labels: Some(HashMap::from([(names::TYPE.to_owned(), names::TYPE_HELPER.to_owned())])),
        ..ContainerCreateBody::default()
    }
}

/// The text of the only file of an archive.
fn single_file(archive: &[u8]) -> io::Result<Option<String>> {
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        if entry.header().entry_type().is_file() {
            let mut bytes = Vec::new();
            let size = entry.size().min(MAX_FILE_BYTES);
            entry.take(size).read_to_end(&mut bytes)?;
            if (bytes.len() as u64) < size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(None)
}

/// The image reference for container statuses: the digest under the requested repository, since an image may be in
/// several; else any digest; else the id.
fn shown(name: &str, digests: &[String], id: &str) -> String {
    let repository = |name: &str| Reference::parse(name).map(|image| image.repository());
    let requested = repository(name);
    let matching = digests.iter().find(|digest| requested.is_some() && repository(digest) == requested);
    matching.or_else(|| digests.first()).map_or(id, String::as_str).to_owned()
}

/// The familiar form of an image name, as Docker lists it. Without a tag Docker would pull every tag, so `latest` is
/// added. What is no valid name stays as it is.
pub(crate) fn familiar(name: &str) -> String {
    Reference::parse(name).map_or_else(|| name.to_owned(), |image| image.familiar())
}

/// Whether Docker's error says that the registry is unavailable, and not that it has refused.
pub(crate) fn is_registry_unavailable(reason: &str) -> bool {
    [502, 503, 504].iter().any(|code| reason.contains(&format!("unexpected HTTP status: {code}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Fetching, PullStatus, UNPACK_DEADLINE, is_registry_unavailable, shown, single_file};
    use crate::engine::{Cause, fake};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn unpacking_may_take_longer_than_a_silent_download() {
        let mut fetching = Fetching::default();
        let mut after = |layer: &str, status: &str| {
            let (layer, status) = (layer.to_owned(), status.to_owned());
            fetching.apply(&PullStatus { layer, status, ..PullStatus::default() });
            fetching.deadline(MINUTE)
        };
        for (layer, status, deadline) in [
            ("", "Pulling from library/x", MINUTE),
            ("a", "Pulling fs layer", MINUTE),
            ("b", "Pulling fs layer", MINUTE),
            ("b", "Waiting", MINUTE),
            ("a", "Download complete", MINUTE),
            ("a", "Extracting", MINUTE),
            ("b", "Downloading", MINUTE),
            ("b", "Download complete", UNPACK_DEADLINE),
            ("b", "Extracting", UNPACK_DEADLINE),
            ("c", "Retrying in 5 seconds", MINUTE),
            ("c", "Already exists", UNPACK_DEADLINE),
        ] {
            assert_eq!(after(layer, status), deadline, "{layer} {status}");
        }
        assert_eq!(fetching.deadline(2 * UNPACK_DEADLINE), 2 * UNPACK_DEADLINE);
    }

    /// Docker's response, the cause of the failure, and the progress that was reported.
    #[tokio::test]
    async fn causes_of_failed_pulls() {
        const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let progress = chunk("{\"status\":\"Pulling from library/x\"}\r\n");
        let failure = chunk("{\"errorDetail\":{\"message\":\"no matching boom\"},\"error\":\"no matching boom\"}\r\n");
        let garbage = chunk("{nope}\r\n");
        for (answer, cause, reason) in [
            (
                format!("{HEAD}{progress}{failure}0\r\n\r\n"),
                Cause::Failed,
                "no matching boom",
            ),
            (format!("{HEAD}{progress}{garbage}0\r\n\r\n"), Cause::Failed, "could not be used"),
            (format!("{HEAD}{progress}ff\r\n{{\"sta"), Cause::Unreachable, "did not answer"),
            (
                "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"message\":\"none\"}"
                    .to_owned(),
                Cause::Refused(404),
                "none",
            ),
            (String::new(), Cause::Unreachable, "did not answer"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let engine = fake::answering(dir.path(), String::leak(answer.clone()));
            let mut told = Vec::new();
            let error = engine.pull_image("x", None, MINUTE, &mut |news| told.push(news.status)).await.unwrap_err();
            assert_eq!(error.cause, cause, "{answer:?}: {error}");
            assert!(error.reason.contains(reason), "{answer:?}: {error}");
            let began = answer.contains("Pulling");
            assert_eq!(told, if began { vec!["Pulling from library/x".to_owned()] } else { vec![] }, "{answer:?}");
        }
        let missing = crate::engine::Engine::new("/nowhere/docker.sock", std::sync::Arc::default()).unwrap();
        assert_eq!(missing.pull_image("x", None, MINUTE, &mut |_| {}).await.unwrap_err().cause, Cause::Unreachable);
    }

    #[test]
    fn single_file_of_an_archive() {
        let archive = |kind| {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(kind);
            header.set_size(4);
            builder.append_data(&mut header, "passwd", &b"text"[..]).unwrap();
            builder.into_inner().unwrap()
        };
        assert_eq!(single_file(&archive(tar::EntryType::Regular)).unwrap().as_deref(), Some("text"));
        assert_eq!(single_file(&archive(tar::EntryType::Symlink)).unwrap(), None);
        assert!(single_file(&archive(tar::EntryType::Regular)[..514]).is_err());
    }

    #[test]
    fn image_reference_is_the_digest_of_its_repository() {
        let digest = |name: &str| format!("{name}@sha256:{}", "0a".repeat(32));
        let digests = ["a.example/x", "host:5000/y", "nginx"].map(digest);
        assert_eq!(shown("host:5000/y:1", &digests, "sha256:i"), digest("host:5000/y"));
        assert_eq!(
            shown("docker.io/library/nginx:1", &digests, "sha256:i"),
            digest("nginx"),
            "Docker names it shortly"
        );
        assert_eq!(shown("other", &digests, "sha256:i"), digest("a.example/x"));
        assert_eq!(shown("other", &[], "sha256:i"), "sha256:i");
    }

    #[test]
    fn an_unavailable_registry_is_not_a_refusal() {
        assert!(is_registry_unavailable("received unexpected HTTP status: 503 Service Unavailable"));
        assert!(!is_registry_unavailable("unauthorized: access denied, request 503"));
    }
}
