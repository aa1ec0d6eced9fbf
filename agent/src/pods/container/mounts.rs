//! What a container's `volumeMounts` and `volumeDevices` mean to Docker. Pure; `steps::mounts` has the kernel mount
//! what is only a part of a volume.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::env::expand;
use crate::volumes::MountSource;

/// What one volume mount is mounted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerMount {
    pub(crate) from: MountOrigin,
    pub(crate) read_only: bool,
}

/// Where the files of a mount come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountOrigin {
    /// A path of the host, which Docker bind-mounts.
    Host(PathBuf),
    /// An image, which Docker mounts itself; all of it, or a subpath.
    Image { id: String, sub_path: Option<String> },
}

/// The `subPath` or expanded `subPathExpr` of a mount.
///
/// # Errors
/// A path that leads out of the volume, or a variable that is not set.
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
pub(crate) fn devices(container: &Container, places: &BTreeMap<String, MountSource>) -> Result<Vec<Device>, String> {
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
    fn devices_are_no_folders() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"}],"volumeDevices":[{"name":"d","devicePath":"/dev/x"}]}"#,
        )
        .unwrap();
        let place = |path: &str, device| MountSource { path: path.into(), read_only: false, device, image: None };
        let mut places =
            BTreeMap::from([("v".to_owned(), place("/host", false)), ("d".to_owned(), place("/dev/loop7", true))]);
        let wanted = Device { path: "/dev/loop7".into(), at: "/dev/x".to_owned(), read_only: false };
        assert_eq!(devices(&container, &places), Ok(vec![wanted]));
        places.insert("v".to_owned(), place("/dev/loop7", true));
        places.insert("d".to_owned(), place("/host", false));
        assert!(devices(&container, &places).unwrap_err().contains("volumeMounts"));
        places.remove("d");
        assert!(devices(&container, &places).unwrap_err().contains("\"d\""));
    }
}
