//! Where Docker keeps images, writable layers and logs: read when Docker first answers, and again whenever it comes back,
//! for only its restart can change that.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{Docker, models::SystemInfo, query_parameters::ListContainersOptions};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::EngineDirs;

use super::{
    Engine, EngineError, Health,
    docker_api::{INFO, LIST_WITH_SIZES},
};

/// A restart may be too short to be seen as an outage.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// After a failure, Docker is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Where a containerd of its own keeps its data, and its configuration.
const CONTAINERD_ROOT: &str = "/var/lib/containerd";
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// The directories that Docker's `GET /info` tells; `config` is the text of containerd's configuration, if there is any.
fn dirs_of(info: &SystemInfo, config: Option<&str>) -> EngineDirs {
    let Some(data_root) = info.docker_root_dir.as_deref().filter(|dir| !dir.is_empty()).map(PathBuf::from) else {
        return EngineDirs::default();
    };
    let status = info.driver_status.iter().flatten();
    let uses_containerd = status
        .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
        .any(|(key, value)| key == "driver-type" && value.starts_with("io.containerd.snapshotter."));
    let image_root = if uses_containerd { containerd_root(info, &data_root, config) } else { data_root.clone() };
    EngineDirs { data_root: Some(data_root), image_root: Some(image_root) }
}

/// The root of the containerd that Docker uses: one that it has started itself, or the system's.
fn containerd_root(info: &SystemInfo, data_root: &Path, config: Option<&str>) -> PathBuf {
    let address = info.containerd.as_ref().and_then(|containerd| containerd.address.as_deref()).unwrap_or_default();
    // As `--root` of a child of dockerd (`daemon/internal/libcontainerd/supervisor`).
    if address.ends_with("docker/containerd/containerd.sock") {
        return data_root.join("containerd/daemon");
    }
    let configured = config.into_iter().flat_map(str::lines).take_while(|line| !line.trim_start().starts_with('['));
    let root = configured.filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "root").then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    });
    root.last().filter(|root| root.starts_with('/')).map_or_else(|| CONTAINERD_ROOT.into(), PathBuf::from)
}

/// Follows Docker's directories until `shutdown`.
pub(crate) async fn follow(
    engine: Engine,
    mut health: watch::Receiver<Health>,
    dirs: watch::Sender<EngineDirs>,
    shutdown: CancellationToken,
) {
    let following = async {
        loop {
            if health.wait_for(|health| matches!(health, Health::Up { .. })).await.is_err() {
                // The end of the node's parts.
                return std::future::pending().await;
            }
            match engine.dirs().await {
                Ok(found) => {
                    dirs.send_if_modified(|known| {
                        let differs = *known != found;
                        if differs {
                            tracing::info!(data_root = ?found.data_root, image_root = ?found.image_root, "Docker keeps its data there");
                            *known = found;
                        }
                        differs
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read where Docker keeps its data; retrying");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            let gone = health.wait_for(|health| !matches!(health, Health::Up { .. }));
            let _ = tokio::time::timeout(REFRESH_INTERVAL, gone).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = following => {}
    }
}

impl Engine {
    /// Where Docker keeps images, writable layers and logs.
    async fn dirs(&self) -> Result<EngineDirs, EngineError> {
        let attempt = || "Docker could not be asked where it keeps its data".to_owned();
        let info = self.get(&INFO, attempt, async |docker: Docker| docker.info().await).await?;
        Ok(dirs_of(&info, std::fs::read_to_string(CONTAINERD_CONFIG).ok().as_deref()))
    }

    /// Bytes of the writable layers of the running containers, by id, as Docker counts them whatever its storage driver
    /// is. It walks over all of their files.
    pub(crate) async fn layer_bytes(&self) -> Result<BTreeMap<String, u64>, EngineError> {
        let options = ListContainersOptions { size: true, ..ListContainersOptions::default() };
        let attempt = || "the sizes of containers could not be read".to_owned();
        let list = async |docker: Docker| docker.list_containers(Some(options)).await;
        let all = self.get(&LIST_WITH_SIZES, attempt, list).await?;
        // Docker leaves the size of an empty layer out.
        let size = |c: bollard::models::ContainerSummary| Some((c.id?, u64::try_from(c.size_rw.unwrap_or(0)).ok()?));
        Ok(all.into_iter().filter_map(size).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fake, *};

    #[tokio::test]
    async fn directories_are_read_when_docker_first_answers_and_when_it_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let engine = fake::scripted(dir.path(), move |_| {
            let root = ["/first", "/second"][asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(1)];
            fake::json(200, &format!(r#"{{"DockerRootDir":"{root}","Driver":"overlay2"}}"#))
        });
        let (health_tx, health) = watch::channel(Health::Unknown);
        let (dirs_tx, mut dirs) = watch::channel(EngineDirs::default());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(follow(engine, health, dirs_tx, shutdown.clone()));
        let up = || Health::Up { version: "29.0.0".to_owned() };
        for root in ["/first", "/second"] {
            health_tx.send_replace(Health::Down { reason: "it starts".to_owned() });
            tokio::task::yield_now().await;
            health_tx.send_replace(up());
            let found = dirs.wait_for(|dirs| dirs.data_root.as_deref() == Some(Path::new(root)));
            tokio::time::timeout(Duration::from_secs(10), found).await.expect("the directories").unwrap();
        }
        shutdown.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn docker_counts_layers_of_any_driver() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake::scripted(dir.path(), |line| {
            assert!(line.contains("size=true"), "{line}");
            fake::json(200, r#"[{"Id":"a","SizeRw":104857600},{"Id":"b","SizeRootFs":9},{"Id":"c","SizeRw":-1}]"#)
        });
        // A layer without a file, and one whose size Docker does not know.
        let expected = [("a", 104_857_600), ("b", 0)].map(|(id, bytes)| (id.to_owned(), bytes));
        assert_eq!(engine.layer_bytes().await.unwrap(), BTreeMap::from(expected));
    }

    /// As the engines of these versions answer.
    #[test]
    fn images_are_where_the_store_is() {
        let overlay2 = r#"{"DockerRootDir":"/data/docker","Driver":"overlay2",
            "DriverStatus":[["Backing Filesystem","extfs"],["Supports d_type","true"]]}"#;
        let containerd = r#"{"DockerRootDir":"/data/docker","Driver":"overlayfs",
            "DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],
            "Containerd":{"Address":"/run/containerd/containerd.sock","Namespaces":{"Containers":"moby"}}}"#;
        let own = containerd.replace("/run/containerd/", "/var/run/docker/containerd/");
        let moved = "version = 3\nroot = '/big/containerd'\nstate = '/run/containerd'\n[plugins]\nroot = '/no'\n";
        for (info, config, image_root) in [
            (overlay2, None, "/data/docker"),
            (overlay2, Some(moved), "/data/docker"),
            (containerd, None, "/var/lib/containerd"),
            (containerd, Some("# nothing\n"), "/var/lib/containerd"),
            (containerd, Some(moved), "/big/containerd"),
            (&*own, Some(moved), "/data/docker/containerd/daemon"),
        ] {
            let found = dirs_of(&serde_json::from_str(info).unwrap(), config);
            assert_eq!(found.data_root.as_deref(), Some(Path::new("/data/docker")));
            assert_eq!(found.image_root.as_deref(), Some(Path::new(image_root)), "{info} {config:?}");
        }
        assert_eq!(dirs_of(&SystemInfo::default(), None), EngineDirs::default(), "nothing is guessed");
    }
}
