//! Volumes of pods: folders and memory on the host that containers mount.
//!
//! `content` decides what a volume's files are and is pure; `atomic` writes them so that a reader never sees
//! half a change; this module makes and removes. Imports nothing of `pods`.

mod atomic;
mod content;
pub(crate) mod follow;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{ConfigMap, EmptyDirVolumeSource, HostPathVolumeSource, Pod, Secret, Volume};
use kube::{Api, Client};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use windlass_kit::quantity::Quantity;

use content::{Objects, Payload};
use follow::{Kind, Reference};

/// Why a volume could not be had.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?}: {reason}")]
pub struct VolumeError {
    volume: String,
    reason: String,
}

/// The volumes of this node's pods; clones share it.
#[derive(Clone)]
pub struct Volumes {
    /// Pods' folders are below it, by uid.
    root: PathBuf,
    client: Client,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volumes").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Volumes {
    /// Volumes below `root`, which is the folder of pods' folders.
    #[must_use]
    pub fn new(root: PathBuf, client: Client) -> Self {
        Self { root, client }
    }

    /// Makes the volumes of a pod, or finds them made; gives where each is.
    ///
    /// # Errors
    /// Names the volume and what is missing.
    pub async fn prepare(&self, pod: &Pod) -> Result<BTreeMap<String, PathBuf>, VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut made = BTreeMap::new();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let failed = |reason: String| VolumeError { volume: volume.name.clone(), reason };
            let path = self.one(pod, uid, volume).await.map_err(failed)?;
            made.insert(volume.name.clone(), path);
        }
        Ok(made)
    }

    /// Writes anew what of a running pod's volumes comes from objects that changed, or from the pod itself.
    ///
    /// # Errors
    /// Names the volume and what is missing; its files stay as they were.
    pub async fn refresh(&self, pod: &Pod) -> Result<(), VolumeError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter(|v| content::plugin(v).is_some())
        {
            let failed = |reason: String| VolumeError { volume: volume.name.clone(), reason };
            self.one(pod, uid, volume).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The objects that a pod's volumes are made of.
    pub(crate) fn references(pod: &Pod) -> Vec<Reference> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let reference = |kind, name| Reference { kind, namespace: namespace.to_owned(), name };
        let mut out = Vec::new();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let (maps, secrets) = content::references(volume);
            out.extend(maps.into_iter().map(|name| reference(Kind::ConfigMap, name)));
            out.extend(secrets.into_iter().map(|name| reference(Kind::Secret, name)));
        }
        out
    }

    async fn one(&self, pod: &Pod, uid: &str, volume: &Volume) -> Result<PathBuf, String> {
        if let Some(source) = &volume.host_path {
            return host_path(source);
        }
        let dir = |plugin: &str| {
            self.root.join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(&volume.name)
        };
        let group = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()).and_then(|c| c.fs_group);
        if let Some(source) = &volume.empty_dir {
            let dir = dir("empty-dir");
            empty_dir(&dir, source)?;
            return give_group(&dir, group).map(|()| dir);
        }
        let (plugin, in_memory) = content::plugin(volume)
            .ok_or_else(|| format!("this kind of volume is not supported: {}", kind_of(volume)))?;
        let objects = self.objects(pod, volume).await?;
        let payload: Payload = content::payload(pod, volume, &objects)?;
        let dir = dir(plugin);
        make_dir(&dir, 0o755)?;
        if in_memory {
            mount_memory(&dir, None)?;
        }
        atomic::write(&dir, &payload, group)
            .map_err(|e| format!("its files could not be written in {}: {e}", dir.display()))?;
        Ok(dir)
    }

    /// The objects that a volume's files come from.
    async fn objects(&self, pod: &Pod, volume: &Volume) -> Result<Objects, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let (maps, secrets) = content::references(volume);
        let mut objects = Objects::default();
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
        Ok(objects)
    }

    /// Unmounts and removes what a pod's volumes hold. Host paths are left alone.
    ///
    /// # Errors
    /// When something cannot be unmounted: nothing below a mount is ever removed.
    pub async fn teardown(&self, uid: &str) -> Result<(), VolumeError> {
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

/// Unmounts everything below `dir`, the deepest first, and removes the volumes' folders.
fn clear(dir: &Path) -> Result<(), String> {
    let prefix = format!("{}/", dir.display());
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("the mounts could not be read: {e}"))?;
    let mut mounts: Vec<&str> =
        table.lines().filter_map(|l| l.split(' ').nth(4)).filter(|m| m.starts_with(&prefix)).collect();
    mounts.sort_unstable_by_key(|m| std::cmp::Reverse(m.len()));
    for mounted in mounts {
        umount2(mounted, MntFlags::MNT_DETACH).map_err(|e| format!("{mounted} could not be unmounted: {e}"))?;
    }
    match fs::remove_dir_all(dir.join("volumes")) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}/volumes could not be removed: {e}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn kind_of(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(k, _)| k.as_str()).find(|k| *k != "name").unwrap_or("none at all").to_owned()
}

fn make_dir(dir: &Path, mode: u32) -> Result<(), String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(dir)
        .map_err(|e| format!("{} could not be made: {e}", dir.display()))?;
    // What others may do there is promised to containers, whatever the process's umask.
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
        .map_err(|e| format!("{} could not be opened to the pod: {e}", dir.display()))
}

fn empty_dir(dir: &Path, source: &EmptyDirVolumeSource) -> Result<(), String> {
    // Who may do what in one that is there is the pod's own business by now.
    if !dir.exists() {
        make_dir(dir, 0o777)?;
    }
    match source.medium.as_deref() {
        None | Some("") => Ok(()),
        Some("Memory") => {
            let size = source
                .size_limit
                .as_ref()
                .and_then(|q| q.0.parse::<Quantity>().ok())
                .map(Quantity::units)
                .filter(|s| *s > 0);
            mount_memory(dir, size)
        }
        Some(other) => Err(format!("the medium {other:?} is not supported; use Memory, or none")),
    }
}

fn mount_memory(dir: &Path, size: Option<i64>) -> Result<(), String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let wanted = dir.to_string_lossy();
    if table.lines().filter_map(|l| l.split(' ').nth(4)).any(|m| m == wanted) {
        return Ok(());
    }
    let options = size.map_or_else(|| "mode=0777".to_owned(), |s| format!("mode=0777,size={s}"));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|e| format!("memory could not be mounted at {}: {e}", dir.display()))
}

/// Gives a volume to the pod's group.
fn give_group(dir: &Path, group: Option<i64>) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    std::os::unix::fs::chown(dir, None, Some(group))
        .map_err(|e| format!("{} could not be given to group {group}: {e}", dir.display()))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o2777)).map_err(|e| e.to_string())
}

/// A path of the host, made or checked as its type says.
fn host_path(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or("");
    let there = fs::metadata(&path).ok();
    let is = |test: fn(&fs::FileType) -> bool| there.as_ref().is_some_and(|m| test(&m.file_type()));
    let fine = match kind {
        // Docker refuses a mount of what is not there; containerd makes a folder of it, and so do we.
        "" | "DirectoryOrCreate" if there.is_none() => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .map_err(|e| format!("hostPath {} could not be made: {e}", path.display()))?;
            true
        }
        "" => true,
        "FileOrCreate" if there.is_none() => {
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(|e| format!("hostPath {} could not be made: {e}", path.display()))?;
            true
        }
        "DirectoryOrCreate" | "Directory" => is(fs::FileType::is_dir),
        "FileOrCreate" | "File" => is(fs::FileType::is_file),
        "Socket" => is(fs::FileType::is_socket),
        "CharDevice" => is(fs::FileType::is_char_device),
        "BlockDevice" => is(fs::FileType::is_block_device),
        other => return Err(format!("the type {other:?} of hostPath {} is not one of Kubernetes'", path.display())),
    };
    if fine { Ok(path) } else { Err(format!("hostPath type check failed: {} is not a {kind}", path.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_made_or_checked() {
        let dir = tempfile::tempdir().unwrap();
        let source = |name: &str, kind: &str| HostPathVolumeSource {
            path: dir.path().join(name).to_string_lossy().into_owned(),
            type_: Some(kind.to_owned()),
        };
        assert!(host_path(&source("a/b", "")).unwrap().is_dir());
        assert!(host_path(&source("c", "DirectoryOrCreate")).unwrap().is_dir());
        assert!(host_path(&source("f", "FileOrCreate")).unwrap().is_file());
        for (name, kind) in
            [("none", "Directory"), ("f", "Directory"), ("c", "File"), ("f", "Socket"), ("c", "Nonsense")]
        {
            assert!(host_path(&source(name, kind)).is_err(), "{name} {kind}");
        }
    }

    #[test]
    fn an_unknown_kind_is_named() {
        let volume: Volume = serde_json::from_str(r#"{"name": "v", "nfs": {"server": "s", "path": "/"}}"#).unwrap();
        assert_eq!(kind_of(&volume), "nfs");
    }
}
