//! The registry of volumes of running pods, for measuring.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use windlass_kit::{
    objects::claims::claim_of,
    published_map::{Follower, Publisher},
};

use super::{MountSource, volumes_of};

/// A measurable volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredVolume {
    /// Its name in the pod.
    pub name: String,
    /// On the host.
    pub path: PathBuf,
    /// Its PersistentVolumeClaim.
    pub claim: Option<String>,
    /// The pod's namespace, which is the claim's.
    pub namespace: String,
    /// It is part of the pod and removed with it; else a separate file system, whose capacity is its size.
    pub of_pod: bool,
}

/// By the pod's uid.
pub type RegisteredVolumes = Follower<Arc<str>, Arc<Vec<RegisteredVolume>>>;

/// The volumes of all pods by uid. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct VolumeRegistry(Publisher<Arc<str>, Arc<Vec<RegisteredVolume>>>);

impl VolumeRegistry {
    /// Follows changes.
    #[must_use]
    pub fn follow(&self) -> RegisteredVolumes {
        self.0.subscribe().follow()
    }

    pub(crate) fn update(&self, pod: &Pod, sources: &BTreeMap<String, MountSource>) {
        if let Some(uid) = pod.metadata.uid.as_deref() {
            self.0.set(Arc::from(uid), Arc::new(measurable(pod, sources)));
        }
    }

    pub(crate) fn remove_pod(&self, uid: &str) {
        self.0.remove(uid);
    }
}

/// The measurable volumes: not host paths, images and devices. Pure.
fn measurable(pod: &Pod, sources: &BTreeMap<String, MountSource>) -> Vec<RegisteredVolume> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let one = |volume| {
        let volume: &k8s_openapi::api::core::v1::Volume = volume;
        let source = sources.get(&volume.name).filter(|source| !source.device)?;
        if volume.host_path.is_some() || volume.image.is_some() {
            return None;
        }
        let claim = claim_of(&pod.metadata, volume).map(|claim| claim.name);
        Some(RegisteredVolume {
            name: volume.name.clone(),
            path: source.path.clone(),
            of_pod: claim.is_none() && volume.nfs.is_none(),
            claim,
            namespace: namespace.to_owned(),
        })
    };
    volumes_of(pod).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_size_is_told_and_forgotten() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":{"containers":[],"volumes":[
                {"name":"scratch","emptyDir":{}},{"name":"host","hostPath":{"path":"/"}},{"name":"made","ephemeral":{}},
                {"name":"data","persistentVolumeClaim":{"claimName":"c"}},{"name":"raw","persistentVolumeClaim":{"claimName":"d"}},
                {"name":"far","nfs":{"server":"s","path":"/"}},{"name":"late","secret":{"secretName":"s"}}]}}"#,
        )
        .unwrap();
        let source = |name: &str| {
            let source = MountSource {
                path: PathBuf::from("/v").join(name),
                read_only: false,
                device: name == "raw",
                image: None,
            };
            (name.to_owned(), source)
        };
        let sources = ["scratch", "host", "made", "data", "raw", "far"].map(source).into();
        let placed = VolumeRegistry::default();
        let mut news = placed.follow();
        placed.update(&pod, &sources);
        let told = news.take();
        let told: Vec<(&str, Option<&str>, bool)> = told["u"]
            .iter()
            .flat_map(|all| all.iter())
            .map(|v| (v.name.as_str(), v.claim.as_deref(), v.of_pod))
            .collect();
        assert_eq!(
            told,
            [
                ("scratch", None, true),
                ("made", Some("p-made"), false),
                ("data", Some("c"), false),
                ("far", None, false)
            ]
        );
        placed.update(&pod, &sources);
        assert!(news.take().is_empty(), "the same again is no news");
        placed.remove_pod("u");
        assert_eq!(news.take(), BTreeMap::from([("u".into(), None)]));
    }
}
