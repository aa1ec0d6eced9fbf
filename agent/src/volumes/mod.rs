//! Volumes of pods: folders and memory on the host that containers mount.
//!
//! What a volume needs is asked of the API first and put into a [`mounter::Mounter`], which has the life cycle of each
//! kind; its calls are made on [`threads`] of their own, since a mount may hang. `content` decides what a volume's files
//! are and is pure, as is most of `claims`; `atomic` writes files so that a reader never sees half a change; `tree` works
//! on folders that containers may write to; `host` and `subpath` make and mount, `nfs` and `image` fetch, `mounted`
//! looks; `tokens` and `follow` ask the API. Imports nothing of `pods` but the pure `fields`.

pub mod atomic;
mod claims;
mod content;
pub(crate) mod follow;
mod host;
mod image;
pub(crate) mod mounted;
mod mounter;
mod nfs;
pub mod placed;
mod quote;
pub(crate) mod subpath;
pub(crate) mod threads;
mod tokens;
mod tree;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod, Volume};
use kube::Client;
use windlass_kit::{
    objects::{claims::claim_of, resources},
    quantity::Quantity,
};

use crate::{engine::Engine, metrics::Metrics};
use claims::Backing;
use content::Objects;
use follow::{Contents, Kind, Reference};
use mounter::{Home, Medium, Mounter, Progress};
use threads::{Call, Threads};
use tokens::Tokens;

/// Why a volume could not be had.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?}: {reason}")]
pub struct VolumeError {
    volume: String,
    reason: String,
}

/// Where a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// On the host; empty where the engine mounts an image itself.
    pub path: PathBuf,
    /// Whatever its mounts say.
    pub read_only: bool,
    /// A block device, for `volumeDevices`; else a folder or a file, for `volumeMounts`.
    pub device: bool,
    /// The image whose files the engine is to mount.
    pub image: Option<String>,
}

/// The images that volumes of a pod are made of.
#[derive(Debug, Clone, Default)]
pub struct VolumeImages {
    /// Their ids, by the volume's name.
    pub ids: BTreeMap<String, String>,
    /// The engine mounts them itself; else they are unpacked.
    pub mounted_by_engine: bool,
}

/// The volumes of a pod, ready to be mounted.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    /// By the volume's name.
    pub places: BTreeMap<String, Place>,
    /// When a token in them is to be renewed.
    pub renew_at: Option<Timestamp>,
}

impl Prepared {
    fn renew(&mut self, at: Option<Timestamp>) {
        self.renew_at = self.renew_at.into_iter().chain(at).min();
    }
}

/// The volumes of this node's pods; clones share it.
#[derive(Clone)]
pub struct Volumes {
    /// Pods' folders are below it, by uid.
    root: PathBuf,
    node_name: String,
    client: Client,
    tokens: Tokens,
    engine: Engine,
    allocatable: BTreeMap<String, Quantity>,
    threads: Threads,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volumes").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Volumes {
    /// Volumes below `root`, which is the folder of pods' folders, on a node that has `allocatable` to give.
    #[must_use]
    pub fn new(
        root: PathBuf,
        node_name: String,
        client: Client,
        engine: Engine,
        allocatable: BTreeMap<String, Quantity>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (tokens, threads) = (Tokens::new(client.clone()), Threads::new(metrics));
        Self { root, node_name, tokens, client, engine, allocatable, threads }
    }

    /// Makes the volumes of a pod, or finds them made.
    ///
    /// # Errors
    /// Names the volume and what is missing.
    pub(crate) async fn prepare(
        &self,
        pod: &Pod,
        images: &VolumeImages,
        contents: &Contents,
    ) -> Result<Prepared, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut made = Prepared::default();
        for volume in volumes_of(pod) {
            let one = async {
                let (source, renew_at) = self.source(pod, volume, images, contents).await?;
                Ok((self.mount(uid, &volume.name, source).await?, renew_at))
            };
            let (place, renew_at) = one.await.map_err(|reason| failed(volume, reason))?;
            made.places.insert(volume.name.clone(), place);
            made.renew(renew_at);
        }
        Ok(made)
    }

    /// Writes anew what of a running pod's volumes comes from objects that changed, or from the pod itself; gives
    /// when that is due again.
    ///
    /// # Errors
    /// Names the volume and what is missing; its files stay as they were.
    pub(crate) async fn refresh(&self, pod: &Pod, contents: &Contents) -> Result<Option<Timestamp>, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut made = Prepared::default();
        for volume in volumes_of(pod).filter(|v| content::plugin(v).is_some()) {
            let one = async {
                let (source, renew_at) = self.source(pod, volume, &VolumeImages::default(), contents).await?;
                self.mount(uid, &volume.name, source).await?;
                Ok(renew_at)
            };
            made.renew(one.await.map_err(|reason| failed(volume, reason))?);
        }
        Ok(made.renew_at)
    }

    /// Makes file-system calls that have to do with a pod's volumes where they may hang.
    ///
    /// # Errors
    /// Those of `work`, or that it does not come back. `what` is the part of the pod which it is about.
    pub(crate) async fn on_thread<T: Send + 'static>(
        &self,
        uid: &str,
        what: &str,
        work: impl FnOnce(&Call) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.threads.run(uid, what, work).await
    }

    /// The objects that a pod's volumes are made of.
    pub(crate) fn references(pod: &Pod) -> Vec<Reference> {
        let mut out = Vec::new();
        for volume in volumes_of(pod) {
            let (maps, secrets) = content::references(volume);
            out.extend(maps.into_iter().map(|name| reference(pod, Kind::ConfigMap, name)));
            out.extend(secrets.into_iter().map(|name| reference(pod, Kind::Secret, name)));
        }
        out
    }

    /// Brings a volume to where containers can mount it.
    async fn mount(&self, uid: &str, volume: &str, source: Source) -> Result<Place, String> {
        let mounter = match source {
            Source::Engine(place) => return Ok(place),
            Source::Node(mounter) => Arc::new(mounter),
        };
        let what = format!("volume {volume:?}");
        let on_node = Arc::clone(&mounter);
        match self.on_thread(uid, &what, move |call| on_node.prepare(call)).await? {
            Progress::Done(place) => return Ok(place),
            Progress::Fetch => {}
        }
        match &*mounter {
            Mounter::Nfs { home, source, options, read_only } => {
                nfs::mount(&home.dir(), source, options, *read_only).await?;
            }
            Mounter::Image { home, id } => {
                let made = Timestamp::now();
                image::unpack(&self.engine, &home.files(), id, &format!("windlass-image-{uid}-{volume}")).await?;
                let on_node = Arc::clone(&mounter);
                self.on_thread(uid, &what, move |_| on_node.unpacked(made)).await?;
            }
            // All of the others are done with calls of the file system.
            _ => {}
        }
        mounter.place()
    }

    /// What a volume is made of, and when it is due again.
    async fn source(
        &self,
        pod: &Pod,
        volume: &Volume,
        images: &VolumeImages,
        contents: &Contents,
    ) -> Result<(Source, Option<Timestamp>), String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        // Both become parts of paths.
        for name in [uid, &volume.name] {
            if !is_folder_name(name) {
                return Err(format!("{name:?} cannot be the name of a folder"));
            }
        }
        let home = |plugin| Home { pod: self.root.join(uid), plugin, volume: volume.name.clone() };
        let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        let group = context.and_then(|c| c.fs_group);
        if let Some((plugin, in_memory)) = content::plugin(volume) {
            let (objects, renew_at) = self.objects(pod, volume, contents).await?;
            let payload = content::payload(pod, volume, &objects)?;
            return Ok((Source::Node(Mounter::Files { home: home(plugin), in_memory, payload, group }), renew_at));
        }
        let mounter = if let Some(source) = &volume.host_path {
            Mounter::HostPath { source: source.clone(), read_only: false }
        } else if let Some(source) = &volume.empty_dir {
            let limit = source.size_limit.as_ref().and_then(|q| q.0.parse::<Quantity>().ok()).map(Quantity::units);
            let size = limit.filter(|s| *s > 0).into_iter().chain(self.most_memory(pod)).min();
            Mounter::EmptyDir { home: home("empty-dir"), medium: Medium::of(source.medium.as_deref())?, size, group }
        } else if let Some(used) = claim_of(pod, volume) {
            let (claim, persistent, labels) = claims::resolve(&self.client, &self.node_name, pod, &used).await?;
            let claimed = claims::backing(&claim, &persistent, &self.node_name, &labels, used.read_only)?;
            let root_is_enough = context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
            let (read_only, options) = (claimed.read_only, claimed.mount_options);
            match claimed.backing {
                Backing::HostPath(HostPathVolumeSource { path, .. }) | Backing::Local(path) if claimed.device => {
                    Mounter::BlockDevice { path: path.into(), read_only }
                }
                Backing::HostPath(source) => Mounter::HostPath { source, read_only },
                // Upstream gives local volumes to the group, and hostPath and nfs not.
                Backing::Local(path) => {
                    let home = home("local-volume");
                    Mounter::Local { home, path: path.into(), read_only, group, root_is_enough }
                }
                Backing::Nfs(source) => Mounter::Nfs { home: home("nfs"), source, options, read_only },
            }
        } else if volume.image.is_some() {
            let id = images.ids.get(&volume.name).ok_or("its image is not there yet")?.clone();
            if images.mounted_by_engine {
                let place = Place { path: PathBuf::new(), read_only: true, device: false, image: Some(id) };
                return Ok((Source::Engine(place), None));
            }
            Mounter::Image { home: home("image"), id }
        } else if let Some(source) = &volume.nfs {
            let read_only = source.read_only == Some(true);
            Mounter::Nfs { home: home("nfs"), source: source.clone(), options: Vec::new(), read_only }
        } else {
            return Err(format!("volumes of kind {} are not supported by Windlass; {SUPPORTED}", kind_of(volume)));
        };
        Ok((Source::Node(mounter), None))
    }

    /// What a pod may hold in memory at most: its containers' limits, where each has one, or all of the node's.
    fn most_memory(&self, pod: &Pod) -> Option<i64> {
        let node = self.allocatable.get("memory").map(|q| q.units());
        let limits = pod
            .spec
            .iter()
            .flat_map(|s| &s.containers)
            .map(|c| resources::limit(c, "memory").map(Quantity::units).filter(|bytes| *bytes > 0));
        limits.sum::<Option<i64>>().into_iter().chain(node).min()
    }

    /// The objects that a volume's files come from, and when a token among them is to be renewed.
    async fn objects(
        &self,
        pod: &Pod,
        volume: &Volume,
        contents: &Contents,
    ) -> Result<(Objects, Option<Timestamp>), String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let (maps, secrets) = content::references(volume);
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
        for source in content::token_sources(volume) {
            let token = self.tokens.get(pod, source, Timestamp::now()).await?;
            renew_at = renew_at.into_iter().chain([token.renew_at]).min();
            objects.tokens.insert(source.path.clone(), token.text);
        }
        Ok((objects, renew_at))
    }

    /// Unmounts and removes what a pod's volumes hold. Host paths are left alone.
    ///
    /// # Errors
    /// When something cannot be unmounted: nothing below a mount is ever removed.
    pub async fn teardown(&self, uid: &str) -> Result<(), VolumeError> {
        self.tokens.forget(uid);
        let dir = self.root.join(uid);
        // Whatever else of the pod hangs, its end is not refused for it.
        let owner = format!("end of {uid}");
        let torn_down = self.on_thread(&owner, "teardown", move |call| mounter::tear_down(&dir, call));
        torn_down.await.map_err(|reason| VolumeError { volume: "*".to_owned(), reason })
    }

    /// The same for the pod of a folder, when no agent runs; gives what stayed.
    #[must_use]
    pub fn teardown_all(pod: &Path) -> Vec<String> {
        mounter::tear_down(pod, &Call::default()).err().into_iter().collect()
    }
}

/// Who brings a volume to its containers.
enum Source {
    Node(Mounter),
    /// Docker itself.
    Engine(Place),
}

fn is_folder_name(name: &str) -> bool {
    matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(part)] if part == name)
}

fn failed(volume: &Volume, reason: String) -> VolumeError {
    VolumeError { volume: volume.name.clone(), reason }
}

fn reference(pod: &Pod, kind: Kind, name: String) -> Reference {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default").to_owned();
    Reference { kind, namespace, name }
}

fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
}

/// What a pod may use, for those who asked for something else.
const SUPPORTED: &str = "those that are: configMap, downwardAPI, emptyDir, ephemeral, hostPath, image, nfs, \
    persistentVolumeClaim (of hostPath, local and nfs volumes), projected, secret";

fn kind_of(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(k, _)| k.as_str()).find(|k| *k != "name").unwrap_or("none at all").to_owned()
}

#[cfg(test)]
mod tests;
