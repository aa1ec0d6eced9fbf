//! From a container's `volumeMounts` to folders and files of the host that Docker binds. `sub_path` is pure; `sources`
//! has the kernel mount what is only a part of a volume.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::env::expand;
use crate::volumes::{
    Place,
    subpath::{Part, mount_part},
    threads::Call,
};

/// What one mount shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) from: Origin,
    pub(crate) read_only: bool,
}

/// Where the files of a mount come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A path of the host, which Docker binds.
    Host(PathBuf),
    /// An image, which Docker mounts itself; all of it, or a part.
    Image { id: String, sub_path: Option<String> },
}

/// The path inside its volume that a mount asks for, its variables filled in.
///
/// # Errors
/// A path that leads out, or a variable that is not there.
pub(crate) fn sub_path(mount: &VolumeMount, variables: &[(String, String)]) -> Result<Option<String>, String> {
    let given = |text: &Option<String>| text.clone().filter(|s| !s.is_empty());
    let (what, sub) = match (given(&mount.sub_path), given(&mount.sub_path_expr)) {
        (Some(sub), _) => ("subPath", sub),
        (None, Some(expression)) => {
            let mut unknown = None;
            let value_of = |name: &str| {
                let found = variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
                if found.is_none() {
                    unknown = Some(name.to_owned());
                }
                found
            };
            let sub = expand(&expression, value_of);
            if let Some(name) = unknown {
                return Err(format!("missing value for {name:?} in subPathExpr {expression:?}"));
            }
            ("subPathExpr", sub)
        }
        (None, None) => return Ok(None),
    };
    let inside = Path::new(&sub)
        .components()
        .all(|c| matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir));
    if inside && !sub.contains('`') {
        Ok(Some(sub))
    } else {
        Err(format!("{what} {sub:?} of volume {:?} must be relative and must not contain '..'", mount.name))
    }
}

/// Whether what is mounted below a read-only mount is read-only too.
pub(crate) fn is_deep_read_only(mount: &VolumeMount) -> bool {
    mount.read_only == Some(true) && matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"))
}

/// What each mount of a container shows, in their order. Parts are mounted below the pod's folder, anew for each
/// instance of the container, so that it sees what is there now. Each volume is looked at: one whose server is away is to
/// keep this call and not Docker.
///
/// # Errors
/// Names the mount whose volume is missing or whose part cannot be had.
pub(crate) fn sources(
    pod_dir: &Path,
    container: &Container,
    places: &BTreeMap<String, Place>,
    variables: &[(String, String)],
    call: &Call,
) -> Result<Vec<Source>, String> {
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
            let (sub, deep) = (sub_path(mount, variables)?, is_deep_read_only(mount));
            if let Some(id) = place.image.clone() {
                return Ok(Source { from: Origin::Image { id, sub_path: sub }, read_only });
            }
            if sub.is_none() && !deep {
                // What Docker says of a path that is gone is better than anything said here.
                let _ = std::fs::metadata(&place.path);
                call.still_wanted()?;
                return Ok(Source { from: Origin::Host(place.path.clone()), read_only });
            }
            let target =
                pod_dir.join("volume-subpaths").join(&mount.name).join(&container.name).join(index.to_string());
            let part = Part {
                volume: &place.path,
                sub_path: sub.as_deref().unwrap_or(""),
                target: &target,
                deep_read_only: deep,
            };
            Ok(Source { from: Origin::Host(mount_part(&part, call)?), read_only })
        })
        .collect()
}

/// A block device that a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// On the host.
    pub(crate) path: PathBuf,
    /// In the container.
    pub(crate) at: String,
    pub(crate) read_only: bool,
}

/// The block devices of a container, in their order.
///
/// # Errors
/// Names the volume that is missing or no device.
pub(crate) fn devices(container: &Container, places: &BTreeMap<String, Place>) -> Result<Vec<Device>, String> {
    let wanted = container.volume_devices.iter().flatten();
    wanted
        .map(|device| {
            let place = places.get(&device.name).ok_or_else(|| {
                format!("volume {:?} of the device {} is not among the pod's volumes", device.name, device.device_path)
            })?;
            if !place.device {
                return Err(format!("volume {:?} is no block device: it belongs into volumeMounts", device.name));
            }
            Ok(Device { path: place.path.clone(), at: device.device_path.clone(), read_only: place.read_only })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_paths_stay_inside_and_know_their_variables() {
        let variables = [("POD".to_owned(), "web-0".to_owned()), ("UP".to_owned(), "../x".to_owned())];
        for (fields, wanted) in [
            (r#""name":"v""#, Ok(None)),
            (r#""subPath":"a/b""#, Ok(Some("a/b"))),
            (r#""subPath":"a/../b""#, Err("must not contain")),
            (r#""subPath":"/a""#, Err("must be relative")),
            (r#""subPathExpr":"logs/$(POD)""#, Ok(Some("logs/web-0"))),
            (r#""subPathExpr":"$(UP)""#, Err("must not contain")),
            (r#""subPathExpr":"$(NONE)""#, Err("missing value for \"NONE\"")),
        ] {
            let rest = if fields.contains("\"name\"") { String::new() } else { format!("{fields},") };
            let mount: VolumeMount =
                serde_json::from_str(&format!(r#"{{{rest}"name":"v","mountPath":"/m"}}"#)).unwrap();
            match (sub_path(&mount, &variables), wanted) {
                (Ok(got), Ok(wanted)) => assert_eq!(got.as_deref(), wanted, "{fields}"),
                (Err(why), Err(wanted)) => assert!(why.contains(wanted), "{fields}: {why}"),
                (got, _) => panic!("{fields}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_volume_that_only_reads_is_mounted_so() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"},{"name":"w","mountPath":"/w","readOnly":true}]}"#,
        )
        .unwrap();
        let place = |read_only| Place { path: "/host".into(), read_only, device: false, image: None };
        let mut places = BTreeMap::from([("v".to_owned(), place(true)), ("w".to_owned(), place(false))]);
        let made = sources(Path::new("/none"), &container, &places, &[], &Call::default()).unwrap();
        assert!(made.iter().all(|s| s.read_only));
        places.remove("w");
        assert!(sources(Path::new("/none"), &container, &places, &[], &Call::default()).unwrap_err().contains("\"w\""));
    }

    #[test]
    fn an_image_that_docker_mounts_is_named_with_its_part() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"},{"name":"v","mountPath":"/w","subPath":"a/b"}]}"#,
        )
        .unwrap();
        let place = Place { path: "".into(), read_only: true, device: false, image: Some("sha256:1".to_owned()) };
        let places = BTreeMap::from([("v".to_owned(), place)]);
        let made = sources(Path::new("/none"), &container, &places, &[], &Call::default()).unwrap();
        let image = |sub_path: Option<&str>| Source {
            from: Origin::Image { id: "sha256:1".to_owned(), sub_path: sub_path.map(str::to_owned) },
            read_only: true,
        };
        assert_eq!(made, [image(None), image(Some("a/b"))]);
    }

    #[test]
    fn devices_are_no_folders() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"}],"volumeDevices":[{"name":"d","devicePath":"/dev/x"}]}"#,
        )
        .unwrap();
        let place = |path: &str, device| Place { path: path.into(), read_only: false, device, image: None };
        let mut places =
            BTreeMap::from([("v".to_owned(), place("/host", false)), ("d".to_owned(), place("/dev/loop7", true))]);
        let wanted = Device { path: "/dev/loop7".into(), at: "/dev/x".to_owned(), read_only: false };
        assert_eq!(devices(&container, &places), Ok(vec![wanted]));
        places.insert("v".to_owned(), place("/dev/loop7", true));
        places.insert("d".to_owned(), place("/host", false));
        assert!(
            sources(Path::new("/none"), &container, &places, &[], &Call::default())
                .unwrap_err()
                .contains("volumeDevices")
        );
        assert!(devices(&container, &places).unwrap_err().contains("volumeMounts"));
        places.remove("d");
        assert!(devices(&container, &places).unwrap_err().contains("\"d\""));
    }
}
