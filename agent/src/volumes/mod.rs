//! The volume manager: sets up volumes of pods on the host, which containers mount.
//!
//! What a volume needs is first read from the API and put into a [`mounter::Mounter`], which implements the life cycle
//! of each kind; its calls run on the [`call_pool`], since a mount may hang. `projected` computes a volume's files and
//! is pure, as is most of `pvc`; `atomic_writer` writes files so that readers never see half a change; `dirfd` works on
//! directories that containers may write to; `mount` and `subpath` create and mount, `nfs` and `image` fetch,
//! `mountinfo` reads the mount table; `tokens` and `object_watch` use the API; `registry` publishes volumes for
//! measuring. Imports nothing of `pods`.

pub mod atomic_writer;
pub(crate) mod call_pool;
mod image;
mod mount;
mod mounter;
pub(crate) mod mountinfo;
mod nfs;
pub(crate) mod object_watch;
mod projected;
mod pvc;
pub mod registry;
pub(crate) mod subpath;
mod tokens;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod, Volume};
use kube::Client;
use windlass_kit::{
    dirfd,
    objects::{claims::claim_of, resources},
    quantity::Quantity,
};

use crate::{engine::Engine, metrics::Metrics};
use call_pool::{Call, VolumeCallPool};
use mounter::{Medium, Mounter, SetUp, VolumeDir};
use object_watch::{Kind, ObjectReader, ObjectRef};
use projected::Objects;
use pvc::PersistentSource;
use tokens::Tokens;

/// A failed volume setup.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {reason}")]
pub struct VolumeError {
    volume: String,
    reason: String,
    /// The volume's source is not ready, for example its claim is unbound: nothing was tried on the node.
    pub(crate) pending: bool,
}

/// Why a volume is not set up.
#[derive(Debug)]
enum Fault {
    /// See [`VolumeError::pending`].
    Pending(String),
    Failed(String),
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Failed(why.to_owned())
    }
}

/// What a container mounts for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// Path on the host; empty if the engine mounts an image itself.
    pub path: PathBuf,
    /// Read-only whatever the container's volumeMount says.
    pub read_only: bool,
    /// A block device, for `volumeDevices`; else a directory or a file, for `volumeMounts`.
    pub device: bool,
    /// The image that the engine mounts.
    pub image: Option<String>,
}

/// The image of an image volume.
#[derive(Debug, Clone)]
pub struct VolumeImage {
    /// Its id in the engine.
    pub id: String,
    /// Whether the engine mounts it itself; else it is unpacked.
    pub mounted_by_engine: bool,
}

/// A volume of a pod, set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedVolume {
    /// What containers mount.
    pub place: MountSource,
    /// When a token in it is due for renewal.
    pub renew_at: Option<Timestamp>,
}

/// The volumes of this node's pods; clones share it.
#[derive(Clone)]
pub struct Volumes {
    /// The directory of pod directories, by uid.
    root: PathBuf,
    node_name: String,
    client: Client,
    tokens: Tokens,
    engine: Engine,
    allocatable: BTreeMap<String, Quantity>,
    pool: VolumeCallPool,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volumes").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Volumes {
    /// Volumes below `root`, the directory of pod directories, on a node with `allocatable` resources.
    #[must_use]
    pub fn new(
        root: PathBuf,
        node_name: String,
        client: Client,
        engine: Engine,
        allocatable: BTreeMap<String, Quantity>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (tokens, pool) = (Tokens::new(client.clone()), VolumeCallPool::new(Arc::clone(&metrics)));
        Self { root, node_name, tokens, client, engine, allocatable, pool, metrics }
    }

    /// Sets up one volume of a pod, or updates its files from objects that changed or from the pod itself; idempotent.
    /// One at a time: volumes are independent, and one whose object is gone must not keep the token of another from
    /// being renewed.
    ///
    /// # Errors
    /// Names the volume and what is missing; files that there are stay as they were.
    pub(crate) async fn prepare(
        &self,
        pod: &Pod,
        volume: &Volume,
        image: Option<VolumeImage>,
        contents: &ObjectReader,
    ) -> Result<PreparedVolume, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let prepared = async {
            let (source, renew_at) = self.source(pod, volume, image, contents).await?;
            Ok(PreparedVolume { place: self.mount(uid, &volume.name, source).await?, renew_at })
        };
        prepared.await.map_err(|fault| {
            let (reason, pending) = match fault {
                Fault::Pending(reason) => (reason, true),
                Fault::Failed(reason) => (reason, false),
            };
            VolumeError { volume: volume.name.clone(), reason, pending }
        })
    }

    /// Runs file-system calls on a pod's volumes in the call pool; `target` names what they work on.
    ///
    /// # Errors
    /// Those of `work`, and when it stalls.
    pub(crate) async fn on_thread<T: Send + 'static>(
        &self,
        uid: &str,
        target: &str,
        work: impl FnOnce(&Call) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.pool.run(uid, target, work).await
    }

    /// The objects that a pod's volumes reference.
    pub(crate) fn references(pod: &Pod) -> Vec<ObjectRef> {
        let mut out = Vec::new();
        for volume in volumes_of(pod) {
            let (maps, secrets) = projected::references(volume);
            out.extend(maps.into_iter().map(|name| reference(pod, Kind::ConfigMap, name)));
            out.extend(secrets.into_iter().map(|name| reference(pod, Kind::Secret, name)));
        }
        out
    }

    /// Sets up a volume so that containers can mount it.
    async fn mount(&self, uid: &str, volume: &str, source: VolumeSource) -> Result<MountSource, String> {
        let mounter = match source {
            VolumeSource::Engine(place) => return Ok(place),
            VolumeSource::Node(mounter) => mounter,
        };
        let (plugin, began) = (format!("kubernetes.io/{}", mounter.plugin()), Instant::now());
        let mounted = self.mount_on_node(uid, volume, mounter).await;
        self.metrics.storage_operation(&plugin, "volume_mount", mounted.is_ok(), began.elapsed());
        mounted
    }

    async fn mount_on_node(&self, uid: &str, volume: &str, mounter: Mounter) -> Result<MountSource, String> {
        let mounter = Arc::new(mounter);
        let target = format!("volume {volume:?}");
        let on_node = Arc::clone(&mounter);
        match self.on_thread(uid, &target, move |call| on_node.prepare(call)).await? {
            SetUp::Done(place) => return Ok(place),
            SetUp::Fetch => {}
        }
        match &*mounter {
            Mounter::Nfs { volume_dir, source, options, read_only } => {
                nfs::mount(&volume_dir.dir(), source, options, *read_only).await?;
            }
            Mounter::Image { volume_dir, id } => {
                let made = Timestamp::now();
                image::unpack(&self.engine, &volume_dir.files(), id, &format!("windlass-image-{uid}-{volume}")).await?;
                let on_node = Arc::clone(&mounter);
                self.on_thread(uid, &target, move |_| on_node.unpacked(made)).await?;
            }
            // All others need file-system calls only.
            _ => {}
        }
        mounter.place()
    }

    /// The source of a volume, and when it is due for an update.
    async fn source(
        &self,
        pod: &Pod,
        volume: &Volume,
        image: Option<VolumeImage>,
        contents: &ObjectReader,
    ) -> Result<(VolumeSource, Option<Timestamp>), Fault> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        // Both become path components.
        for name in [uid, &volume.name] {
            if !is_dir_name(name) {
                return Err(format!("{name:?} cannot be the name of a directory").into());
            }
        }
        let volume_dir = |plugin| VolumeDir { pod: self.root.join(uid), plugin, volume: volume.name.clone() };
        let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        let group = context.and_then(|c| c.fs_group);
        if let Some((plugin, in_memory)) = projected::plugin(volume) {
            let (objects, renew_at) = self.objects(pod, volume, contents).await?;
            let payload = projected::payload(pod, volume, &objects)?;
            return Ok((
                VolumeSource::Node(Mounter::Files { volume_dir: volume_dir(plugin), in_memory, payload, group }),
                renew_at,
            ));
        }
        let mounter = if let Some(source) = &volume.host_path {
            Mounter::HostPath { source: source.clone(), read_only: false }
        } else if let Some(source) = &volume.empty_dir {
            let limit = source.size_limit.as_ref().and_then(|q| q.0.parse::<Quantity>().ok()).map(Quantity::units);
            let size = limit.filter(|s| *s > 0).into_iter().chain(self.memory_limit(pod)).min();
            Mounter::EmptyDir {
                volume_dir: volume_dir("empty-dir"),
                medium: Medium::parse(source.medium.as_deref())?,
                size,
                group,
            }
        } else if let Some(used) = claim_of(&pod.metadata, volume) {
            let resolved = pvc::resolve(&self.client, &self.node_name, pod, &used).await;
            let (claim, persistent, labels) = resolved.map_err(Fault::Pending)?;
            let resolved = pvc::persistent_source(&claim, &persistent, &self.node_name, &labels, used.read_only)?;
            let on_root_mismatch = context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
            let (read_only, options) = (resolved.read_only, resolved.mount_options);
            match resolved.source {
                PersistentSource::HostPath(HostPathVolumeSource { path, .. }) | PersistentSource::Local(path)
                    if resolved.device =>
                {
                    Mounter::BlockDevice { path: path.into(), read_only }
                }
                PersistentSource::HostPath(source) => Mounter::HostPath { source, read_only },
                // Upstream sets the ownership of local volumes, but not of hostPath and nfs.
                PersistentSource::Local(path) => {
                    let volume_dir = volume_dir("local-volume");
                    Mounter::Local { volume_dir, path: path.into(), read_only, group, on_root_mismatch }
                }
                PersistentSource::Nfs(source) => {
                    Mounter::Nfs { volume_dir: volume_dir("nfs"), source, options, read_only }
                }
            }
        } else if volume.image.is_some() {
            let VolumeImage { id, mounted_by_engine } = image.ok_or("its image is not pulled yet")?;
            if mounted_by_engine {
                let place = MountSource { path: PathBuf::new(), read_only: true, device: false, image: Some(id) };
                return Ok((VolumeSource::Engine(place), None));
            }
            Mounter::Image { volume_dir: volume_dir("image"), id }
        } else if let Some(source) = &volume.nfs {
            let read_only = source.read_only == Some(true);
            Mounter::Nfs { volume_dir: volume_dir("nfs"), source: source.clone(), options: Vec::new(), read_only }
        } else {
            return Err(
                format!("volumes of kind {} are not supported by Windlass; {SUPPORTED}", kind_of(volume)).into()
            );
        };
        Ok((VolumeSource::Node(mounter), None))
    }

    /// The limit of a pod's memory volumes: the sum of its containers' memory limits, if each has one, and allocatable
    /// memory.
    fn memory_limit(&self, pod: &Pod) -> Option<i64> {
        let node = self.allocatable.get("memory").map(|q| q.units());
        let limits = pod
            .spec
            .iter()
            .flat_map(|s| &s.containers)
            .map(|c| resources::limit(c, "memory").map(Quantity::units).filter(|bytes| *bytes > 0));
        limits.sum::<Option<i64>>().into_iter().chain(node).min()
    }

    /// The objects of a volume's files, and when a token among them is due for renewal.
    async fn objects(
        &self,
        pod: &Pod,
        volume: &Volume,
        contents: &ObjectReader,
    ) -> Result<(Objects, Option<Timestamp>), String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let (maps, secrets) = projected::references(volume);
        let mut objects = Objects { allocatable: self.allocatable.clone(), ..Objects::default() };
        for name in maps {
            let found = contents.config_map(namespace, &name).await;
            let found = found.map_err(|e| format!("configmap {name:?} could not be read: {e}"))?;
            objects.config_maps.extend(found.map(|m| (name, m)));
        }
        for name in secrets {
            let found = contents.secret(namespace, &name).await;
            let found = found.map_err(|e| format!("secret {name:?} could not be read: {e}"))?;
            objects.secrets.extend(found.map(|s| (name, s)));
        }
        let mut renew_at = None;
        for source in projected::token_sources(volume) {
            let token = self.tokens.get(pod, source, Timestamp::now()).await?;
            renew_at = renew_at.into_iter().chain([token.renew_at]).min();
            objects.tokens.insert(source.path.clone(), token.text);
        }
        Ok((objects, renew_at))
    }

    /// Unmounts and removes a pod's volumes. Host paths are left alone.
    ///
    /// # Errors
    /// When something cannot be unmounted: nothing below a mount is ever removed.
    pub async fn teardown(&self, uid: &str) -> Result<(), VolumeError> {
        self.tokens.remove_pod(uid);
        let dir = self.root.join(uid);
        // Another owner, so that stalled calls of the pod do not block its teardown.
        let owner = format!("end of {uid}");
        let result = self.on_thread(&owner, "teardown", move |call| mounter::tear_down(&dir, call));
        result.await.map_err(|reason| VolumeError { volume: "*".to_owned(), reason, pending: false })
    }

    /// What is mounted below a directory.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn mounts_below(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
        mountinfo::mounts_below(dir)
    }

    /// Ends the volumes of all pods when no agent runs, in `pods`, the directory with one directory for each: unmounts them,
    /// so that no Secret stays in memory, and with `remove` removes what is on this machine's disk, too. Returns what could
    /// not be done.
    #[must_use]
    pub fn end_all(pods: &Path, remove: bool) -> Vec<String> {
        let end = if remove { mounter::tear_down } else { mounter::unmount };
        let entries = match std::fs::read_dir(pods) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => return vec![format!("the volumes in {} could not be looked for: {error}", pods.display())],
            Ok(entries) => entries,
        };
        entries
            .filter_map(|entry| match entry {
                Ok(entry) => end(&entry.path(), &Call::default()).err(),
                Err(error) => Some(format!("the volumes in {} could not be looked for: {error}", pods.display())),
            })
            .collect()
    }
}

/// Upstream's name of the plugin of a volume; that of a claim's volume is not known from the pod.
pub(crate) fn plugin_of(volume: &Volume) -> &'static str {
    match volume {
        Volume { config_map: Some(_), .. } => "kubernetes.io/configmap",
        Volume { secret: Some(_), .. } => "kubernetes.io/secret",
        Volume { downward_api: Some(_), .. } => "kubernetes.io/downward-api",
        Volume { projected: Some(_), .. } => "kubernetes.io/projected",
        Volume { empty_dir: Some(_), .. } => "kubernetes.io/empty-dir",
        Volume { host_path: Some(_), .. } => "kubernetes.io/host-path",
        Volume { nfs: Some(_), .. } => "kubernetes.io/nfs",
        Volume { image: Some(_), .. } => "kubernetes.io/image",
        _ => "N/A",
    }
}

/// Who mounts a volume.
enum VolumeSource {
    Node(Mounter),
    /// Docker itself.
    Engine(MountSource),
}

fn is_dir_name(name: &str) -> bool {
    matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(part)] if part == name)
}

fn reference(pod: &Pod, kind: Kind, name: String) -> ObjectRef {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default").to_owned();
    ObjectRef { kind, namespace, name }
}

/// Whether a volume's files come from objects or from the pod, and are rewritten when those change.
pub(crate) fn is_refreshed(volume: &Volume) -> bool {
    projected::plugin(volume).is_some()
}

fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
}

/// The supported kinds, for error messages.
const SUPPORTED: &str = "those that are: configMap, downwardAPI, emptyDir, ephemeral, hostPath, image, nfs, \
    persistentVolumeClaim (of hostPath, local and nfs volumes), projected, secret";

fn kind_of(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(k, _)| k.as_str()).find(|k| *k != "name").unwrap_or("none at all").to_owned()
}

#[cfg(test)]
mod tests;
