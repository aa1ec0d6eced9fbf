//! Volumes of pods: folders and memory on the host that containers mount.
//!
//! `content` decides what a volume's files are and is pure, as is most of `claims`; `atomic` writes files so that a
//! reader never sees half a change; `host` and `subpath` make and mount, `mounted` looks; `tokens` and `follow` ask the API. Imports
//! nothing of `pods` but the pure `fields`.

mod atomic;
mod claims;
mod content;
pub(crate) mod follow;
mod host;
mod image;
pub(crate) mod mounted;
pub mod placed;
pub(crate) mod subpath;
mod tokens;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, HostPathVolumeSource, Pod, Secret, Volume};
use kube::{Api, Client};
use nix::mount::{MntFlags, umount2};
use windlass_kit::{
    objects::{claims::claim_of, resources},
    quantity::Quantity,
};

use crate::engine::Engine;
use claims::Backing;
use content::{Objects, Payload};
use follow::{Kind, Reference};
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
    /// On the host.
    pub path: PathBuf,
    /// Whatever its mounts say.
    pub read_only: bool,
    /// A block device, for `volumeDevices`; else a folder or a file, for `volumeMounts`.
    pub device: bool,
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
    ) -> Self {
        Self { root, node_name, tokens: Tokens::new(client.clone()), client, engine, allocatable }
    }

    /// Makes the volumes of a pod, or finds them made. `images` gives the id of the image that a volume is made of, by
    /// the volume's name.
    ///
    /// # Errors
    /// Names the volume and what is missing.
    pub async fn prepare(&self, pod: &Pod, images: &BTreeMap<String, String>) -> Result<Prepared, VolumeError> {
        self.each(pod, images, |_| true).await
    }

    /// Writes anew what of a running pod's volumes comes from objects that changed, or from the pod itself; gives
    /// when that is due again.
    ///
    /// # Errors
    /// Names the volume and what is missing; its files stay as they were.
    pub async fn refresh(&self, pod: &Pod) -> Result<Option<Timestamp>, VolumeError> {
        self.each(pod, &BTreeMap::new(), |volume| content::plugin(volume).is_some()).await.map(|made| made.renew_at)
    }

    async fn each(
        &self,
        pod: &Pod,
        images: &BTreeMap<String, String>,
        wanted: impl Fn(&Volume) -> bool,
    ) -> Result<Prepared, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut made = Prepared::default();
        for volume in volumes_of(pod).filter(|v| wanted(v)) {
            let failed = |reason: String| VolumeError { volume: volume.name.clone(), reason };
            let (place, renew_at) = self.one(pod, uid, volume, images).await.map_err(failed)?;
            made.places.insert(volume.name.clone(), place);
            made.renew(renew_at);
        }
        Ok(made)
    }

    /// The objects that a pod's volumes are made of.
    pub(crate) fn references(pod: &Pod) -> Vec<Reference> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let reference = |kind, name| Reference { kind, namespace: namespace.to_owned(), name };
        let mut out = Vec::new();
        for volume in volumes_of(pod) {
            let (maps, secrets) = content::references(volume);
            out.extend(maps.into_iter().map(|name| reference(Kind::ConfigMap, name)));
            out.extend(secrets.into_iter().map(|name| reference(Kind::Secret, name)));
        }
        out
    }

    async fn one(
        &self,
        pod: &Pod,
        uid: &str,
        volume: &Volume,
        images: &BTreeMap<String, String>,
    ) -> Result<(Place, Option<Timestamp>), String> {
        let dir = |plugin: &str| {
            self.root.join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(&volume.name)
        };
        let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        let group = context.and_then(|c| c.fs_group);
        let writable = |path: PathBuf| Ok((Place { path, read_only: false, device: false }, None));
        if let Some(source) = &volume.host_path {
            return writable(host::host_path(source)?);
        }
        if let Some(source) = &volume.empty_dir {
            let dir = dir("empty-dir");
            host::empty_dir(&dir, source, self.most_memory(pod))?;
            host::give_group(&dir, group)?;
            return writable(dir);
        }
        if let Some(used) = claim_of(pod, volume) {
            let (claim, persistent, labels) = claims::resolve(&self.client, &self.node_name, pod, &used).await?;
            let claimed = claims::backing(&claim, &persistent, &self.node_name, &labels, used.read_only)?;
            let root_is_enough = context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
            let path = match &claimed.backing {
                Backing::HostPath(HostPathVolumeSource { path, .. }) | Backing::Local(path) if claimed.device => {
                    host::block_device(Path::new(path))?
                }
                Backing::HostPath(source) => host::host_path(source)?,
                Backing::Local(path) => {
                    let path = PathBuf::from(path);
                    if !path.is_dir() {
                        return Err(format!("the local volume's folder {} is not there", path.display()));
                    }
                    // Upstream gives local volumes to the group, and hostPath and nfs not.
                    host::give_all_to_group(&path, group, claimed.read_only, root_is_enough)?;
                    path
                }
                Backing::Nfs(source) => {
                    let dir = dir("nfs");
                    host::make_dir(&dir, 0o750)?;
                    host::mount_nfs(&dir, source, &claimed.mount_options, claimed.read_only).await?;
                    dir
                }
            };
            return Ok((Place { path, read_only: claimed.read_only, device: claimed.device }, None));
        }
        if volume.image.is_some() {
            let id = images.get(&volume.name).ok_or("its image is not there yet")?;
            let dir = dir("image");
            let name = format!("windlass-image-{uid}-{}", volume.name);
            image::unpack(&self.engine, &dir, id, &name).await?;
            return Ok((Place { path: dir.join(image::FILES), read_only: true, device: false }, None));
        }
        if let Some(source) = &volume.nfs {
            let (dir, read_only) = (dir("nfs"), source.read_only == Some(true));
            host::make_dir(&dir, 0o750)?;
            host::mount_nfs(&dir, source, &[], read_only).await?;
            return Ok((Place { path: dir, read_only, device: false }, None));
        }
        let (plugin, in_memory) = content::plugin(volume)
            .ok_or_else(|| format!("volumes of kind {} are not supported by Windlass; {SUPPORTED}", kind_of(volume)))?;
        let (objects, renew_at) = self.objects(pod, volume).await?;
        let payload: Payload = content::payload(pod, volume, &objects)?;
        let dir = dir(plugin);
        host::make_dir(&dir, 0o755)?;
        if in_memory {
            host::mount_memory(&dir, None)?;
        }
        atomic::write(&dir, &payload, group)
            .map_err(|e| format!("its files could not be written in {}: {e}", dir.display()))?;
        Ok((Place { path: dir, read_only: false, device: false }, renew_at))
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
    async fn objects(&self, pod: &Pod, volume: &Volume) -> Result<(Objects, Option<Timestamp>), String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let (maps, secrets) = content::references(volume);
        let mut objects = Objects { allocatable: self.allocatable.clone(), ..Objects::default() };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        for name in maps {
            let found = api.get_opt(&name).await.map_err(|e| format!("configmap {name:?} could not be read: {e}"))?;
            objects.config_maps.extend(found.map(|m| (name, m)));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        for name in secrets {
            let found = api.get_opt(&name).await.map_err(|e| format!("secret {name:?} could not be read: {e}"))?;
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
        tokio::task::spawn_blocking(move || clear(&dir))
            .await
            .unwrap_or_else(|e| Err(e.to_string()))
            .map_err(|reason| VolumeError { volume: "*".to_owned(), reason })
    }

    /// The same for all pods; gives what stayed.
    #[must_use]
    pub fn teardown_all(root: &Path) -> Vec<String> {
        clear(root).err().into_iter().collect()
    }
}

fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
}

/// What a pod may use, for those who asked for something else.
const SUPPORTED: &str = "those that are: configMap, downwardAPI, emptyDir, ephemeral, hostPath, image, nfs, \
    persistentVolumeClaim (of hostPath, local and nfs volumes), projected, secret";

/// Folders below a pod's that hold what volumes are made of and mounted at.
const FOLDERS: [&str; 2] = ["volume-subpaths", "volumes"];

/// Unmounts everything below `dir`, the deepest first, and removes the volumes' folders.
fn clear(dir: &Path) -> Result<(), String> {
    let mut mounts = mounted::below(dir).map_err(|e| format!("the mounts could not be read: {e}"))?;
    mounts.sort_unstable_by_key(|m| std::cmp::Reverse(m.as_os_str().len()));
    for mounted in mounts {
        umount2(&mounted, MntFlags::MNT_DETACH)
            .map_err(|e| format!("{} could not be unmounted: {e}", mounted.display()))?;
    }
    for folder in FOLDERS.map(|name| dir.join(name)) {
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{} could not be removed: {e}", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn kind_of(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(k, _)| k.as_str()).find(|k| *k != "name").unwrap_or("none at all").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_is_named() {
        for (source, kind) in [
            (r#""rbd":{"image":"i","monitors":[]}"#, "rbd"),
            (r#""csi":{"driver":"d"}"#, "csi"),
            (r#""gitRepo":{"repository":"r"}"#, "gitRepo"),
        ] {
            let volume: Volume = serde_json::from_str(&format!(r#"{{"name":"v",{source}}}"#)).unwrap();
            assert_eq!((kind_of(&volume).as_str(), content::plugin(&volume)), (kind, None));
        }
    }
}
