//! The volume mounts of a container, with its subpaths mounted on the host.

use std::{collections::BTreeMap, path::Path};

use k8s_openapi::api::core::v1::Container;

use crate::{
    pods::{
        container::mounts::{ContainerMount, MountOrigin, sub_path},
        lifecycle::spec,
    },
    volumes::{
        MountSource,
        call_pool::Call,
        subpath::{SubPath, mount_subpath},
    },
};

/// The mounts of a container, in the order of its `volumeMounts`. Subpaths are mounted below the pod's directory,
/// afresh for each instance of the container, so that it sees their present content. Each volume is stat'ed first: one
/// whose server hangs must block this call and not Docker.
///
/// # Errors
/// Names the mount whose volume is missing or whose subpath cannot be mounted.
pub(crate) fn resolve_mounts(
    pod_dir: &Path,
    container: &Container,
    places: &BTreeMap<String, MountSource>,
    variables: &[(String, String)],
    call: &Call,
) -> Result<Vec<ContainerMount>, String> {
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(index, mount)| {
            let place = places.get(&mount.name).ok_or_else(|| {
                format!("volume {:?} of the mount at {} is not among the pod's volumes", mount.name, mount.mount_path)
            })?;
            if place.device {
                return Err(format!("volume {:?} is a block device: it belongs into volumeDevices", mount.name));
            }
            let read_only = mount.read_only == Some(true) || place.read_only;
            let (sub, recursive) = (sub_path(mount, variables)?, spec::is_recursive_read_only(mount));
            if let Some(id) = place.image.clone() {
                return Ok(ContainerMount { from: MountOrigin::Image { id, sub_path: sub }, read_only });
            }
            if sub.is_none() && !recursive {
                // Docker's own error for a path that does not exist is better than one made up here.
                let _ = std::fs::metadata(&place.path);
                call.check_cancelled()?;
                return Ok(ContainerMount { from: MountOrigin::Host(place.path.clone()), read_only });
            }
            let target =
                pod_dir.join("volume-subpaths").join(&mount.name).join(&container.name).join(index.to_string());
            let part = SubPath {
                volume: &place.path,
                sub_path: sub.as_deref().unwrap_or(""),
                target: &target,
                recursive_read_only: recursive,
            };
            Ok(ContainerMount { from: MountOrigin::Host(mount_subpath(&part, call)?), read_only })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_only_reads_is_mounted_so() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"},{"name":"w","mountPath":"/w","readOnly":true}]}"#,
        )
        .unwrap();
        let place = |read_only| MountSource { path: "/host".into(), read_only, device: false, image: None };
        let mut places = BTreeMap::from([("v".to_owned(), place(true)), ("w".to_owned(), place(false))]);
        let made = resolve_mounts(Path::new("/none"), &container, &places, &[], &Call::default()).unwrap();
        assert!(made.iter().all(|s| s.read_only));
        places.remove("w");
        assert!(
            resolve_mounts(Path::new("/none"), &container, &places, &[], &Call::default())
                .unwrap_err()
                .contains("\"w\"")
        );
    }

    #[test]
    fn an_image_that_docker_mounts_is_named_with_its_part() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"},{"name":"v","mountPath":"/w","subPath":"a/b"}]}"#,
        )
        .unwrap();
        let place = MountSource { path: "".into(), read_only: true, device: false, image: Some("sha256:1".to_owned()) };
        let places = BTreeMap::from([("v".to_owned(), place)]);
        let made = resolve_mounts(Path::new("/none"), &container, &places, &[], &Call::default()).unwrap();
        let image = |sub_path: Option<&str>| ContainerMount {
            from: MountOrigin::Image { id: "sha256:1".to_owned(), sub_path: sub_path.map(str::to_owned) },
            read_only: true,
        };
        assert_eq!(made, [image(None), image(Some("a/b"))]);
    }

    #[test]
    fn a_block_device_is_no_mount() {
        let container: Container =
            serde_json::from_str(r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"}]}"#).unwrap();
        let place = MountSource { path: "/dev/loop7".into(), read_only: false, device: true, image: None };
        let places = BTreeMap::from([("v".to_owned(), place)]);
        let refused = resolve_mounts(Path::new("/none"), &container, &places, &[], &Call::default());
        assert!(refused.unwrap_err().contains("volumeDevices"));
    }
}
