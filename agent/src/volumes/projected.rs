//! Computes the files of configMap, secret, downwardAPI and projected volumes. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccountTokenProjection, Volume,
};
use windlass_kit::{go_quoted, quantity::Quantity};

use super::atomic_writer::{VolumeFile, VolumeFiles};
use crate::downward_api;

/// The objects that a volume references; missing ones are absent.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub(super) secrets: BTreeMap<String, Arc<Secret>>,
    /// By file path.
    pub(super) tokens: BTreeMap<String, String>,
    /// Allocatable resources: the limit of containers without one.
    pub(super) allocatable: BTreeMap<String, Quantity>,
}

/// The plugin name of a volume with files from objects, and whether they are kept in a tmpfs; `None` for other kinds.
pub(super) fn plugin(volume: &Volume) -> Option<(&'static str, bool)> {
    match volume {
        Volume { config_map: Some(_), .. } => Some(("configmap", false)),
        Volume { secret: Some(_), .. } => Some(("secret", true)),
        Volume { downward_api: Some(_), .. } => Some(("downward-api", false)),
        Volume { projected: Some(_), .. } => Some(("projected", true)),
        _ => None,
    }
}

/// Names of ConfigMaps and Secrets that a volume references.
pub(super) fn references(volume: &Volume) -> (Vec<String>, Vec<String>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    maps.extend(volume.config_map.iter().map(|s| s.name.clone()));
    secrets.extend(volume.secret.iter().filter_map(|s| s.secret_name.clone()));
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        maps.extend(source.config_map.iter().map(|s| s.name.clone()));
        secrets.extend(source.secret.iter().map(|s| s.name.clone()));
    }
    (maps, secrets)
}

/// The token sources of a volume.
pub(super) fn token_sources(volume: &Volume) -> impl Iterator<Item = &ServiceAccountTokenProjection> {
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    sources.filter_map(|s| s.service_account_token.as_ref())
}

const DEFAULT_MODE: i32 = 0o644;

/// Mode and owner of a token file: of the one user that all containers run as, if there is one, and for the fsGroup if
/// the pod has one; without either as the volume says. Upstream's rule.
fn token_access(pod: &Pod, mode: u32) -> (u32, Option<u32>) {
    let Some(spec) = &pod.spec else { return (mode, None) };
    let shared = spec.security_context.as_ref();
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut users = all.map(|c| {
        c.security_context.as_ref().and_then(|s| s.run_as_user).or_else(|| shared.and_then(|s| s.run_as_user))
    });
    let user = users.next().flatten().filter(|user| users.all(|other| other == Some(*user)));
    let for_group = shared.and_then(|c| c.fs_group).is_some();
    let mode = if for_group || user.is_some() { 0o600 } else { mode };
    (mode, user.and_then(|user| u32::try_from(user).ok()))
}

pub(super) fn payload(pod: &Pod, volume: &Volume, objects: &Objects) -> Result<VolumeFiles, String> {
    let mut out = VolumeFiles::new();
    let config_map_keys = |name: &str, optional, items: Option<&[KeyToPath]>, mode, out: &mut VolumeFiles| {
        project_keys(&KeyProjection { what: "configmap", name, optional, items, mode }, config_map(objects, name), out)
    };
    let secret_keys = |name: &str, optional, items: Option<&[KeyToPath]>, mode, out: &mut VolumeFiles| {
        project_keys(&KeyProjection { what: "secret", name, optional, items, mode }, secret(objects, name), out)
    };
    if let Some(source) = &volume.config_map {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        config_map_keys(&source.name, source.optional, source.items.as_deref(), mode, &mut out)?;
    }
    if let Some(source) = &volume.secret {
        let (name, mode) = (source.secret_name.as_deref().unwrap_or(""), source.default_mode.unwrap_or(DEFAULT_MODE));
        secret_keys(name, source.optional, source.items.as_deref(), mode, &mut out)?;
    }
    if let Some(source) = &volume.downward_api {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        downward_files(pod, source.items.as_deref(), mode, &objects.allocatable, &mut out)?;
    }
    if let Some(projected) = &volume.projected {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                config_map_keys(&source.name, source.optional, source.items.as_deref(), mode, &mut out)?;
            } else if let Some(source) = &source.secret {
                secret_keys(&source.name, source.optional, source.items.as_deref(), mode, &mut out)?;
            } else if let Some(source) = &source.downward_api {
                downward_files(pod, source.items.as_deref(), mode, &objects.allocatable, &mut out)?;
            } else if let Some(source) = &source.service_account_token {
                let token = objects.tokens.get(&source.path).ok_or("the API gave no token for the service account")?;
                let (mode, owner) = token_access(pod, mode_bits(mode));
                out.insert(source.path.clone(), VolumeFile { bytes: token.clone().into_bytes(), mode, owner });
            } else {
                let why = "clusterTrustBundle and podCertificate need features that are off by default upstream";
                return Err(format!("a source of the projected volume is of a kind that is not supported: {why}"));
            }
        }
    }
    for path in out.keys() {
        let valid = !path.is_empty()
            && !path.starts_with('/')
            // Reserved for the volume's own directories.
            && !path.starts_with("..")
            && path.split('/').all(|part| !part.is_empty() && part != ".." && part != ".");
        if !valid {
            return Err(format!("the path {path:?} of a file must be relative and must not contain '..'"));
        }
    }
    Ok(out)
}

/// Permission bits of a mode of the API.
fn mode_bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or(0o644) & 0o777
}

/// A projection of an object's keys.
struct KeyProjection<'a> {
    /// `configmap` or `secret`.
    what: &'a str,
    name: &'a str,
    optional: Option<bool>,
    items: Option<&'a [KeyToPath]>,
    mode: i32,
}

/// Projects all keys, or the listed items to their paths; `data` is absent if the object does not exist.
fn project_keys(
    asked: &KeyProjection<'_>,
    data: Option<BTreeMap<String, Vec<u8>>>,
    out: &mut VolumeFiles,
) -> Result<(), String> {
    let KeyProjection { what, name, items, mode, .. } = *asked;
    let optional = asked.optional == Some(true);
    let Some(data) = data else {
        return if optional { Ok(()) } else { Err(format!("{what} {name:?} not found")) };
    };
    match items {
        None => {
            for (key, bytes) in data {
                out.insert(key, VolumeFile { bytes, mode: mode_bits(mode), owner: None });
            }
        }
        Some(items) => {
            for item in items {
                match data.get(&item.key) {
                    Some(bytes) => drop(out.insert(
                        item.path.clone(),
                        VolumeFile { bytes: bytes.clone(), mode: mode_bits(item.mode.unwrap_or(mode)), owner: None },
                    )),
                    None if optional => {}
                    // Both are upstream's, which names the one kind and not the other.
                    None if what == "secret" => {
                        return Err(format!("references non-existent secret key: {}", item.key));
                    }
                    None => return Err(format!("{what} references non-existent config key: {}", item.key)),
                }
            }
        }
    }
    Ok(())
}

/// The data of a ConfigMap, by key; `None` if it does not exist.
fn config_map(objects: &Objects, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let map = objects.config_maps.get(name)?;
    let texts = map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    Some(texts.chain(map.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()))).collect())
}

/// The same for a Secret.
fn secret(objects: &Objects, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let secret = objects.secrets.get(name)?;
    Some(secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect())
}

fn downward_files(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: i32,
    allocatable: &BTreeMap<String, Quantity>,
    out: &mut VolumeFiles,
) -> Result<(), String> {
    for item in items.into_iter().flatten() {
        let lines = |map: &Option<BTreeMap<String, String>>| -> String {
            map.iter().flatten().map(|(k, v)| format!("{k}={}", go_quoted(v))).collect::<Vec<_>>().join("\n")
        };
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => match field.field_path.as_str() {
                "metadata.labels" => lines(&pod.metadata.labels),
                "metadata.annotations" => lines(&pod.metadata.annotations),
                path => downward_api::metadata_value(pod, path)
                    .ok_or_else(|| format!("the field {path:?} cannot be a file of the downward API"))?,
            },
            (None, Some(field)) => downward_api::resource_value(pod, None, field, allocatable)?,
            (None, None) => return Err(format!("the file {:?} of the downward API has no source", item.path)),
        };
        let mode = mode_bits(item.mode.unwrap_or(mode));
        out.insert(item.path.clone(), VolumeFile { bytes: text.into_bytes(), mode, owner: None });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload_of(volume: &str, objects: &Objects) -> Result<Vec<(String, String, u32)>, String> {
        let pod: Pod = serde_json::from_str(r#"{"metadata":{"name":"p","labels":{"b":"2","a":"1"}},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"250m"}}}]}}"#).unwrap();
        let volume: Volume = serde_json::from_str(volume).unwrap();
        let files = payload(&pod, &volume, objects)?;
        Ok(files.into_iter().map(|(k, f)| (k, String::from_utf8(f.bytes).unwrap(), f.mode)).collect())
    }

    #[test]
    fn files_of_each_kind() {
        let mut objects = Objects::default();
        objects
            .config_maps
            .insert("m".into(), Arc::new(serde_json::from_str(r#"{"data":{"a":"1","b":"2"}}"#).unwrap()));
        objects.secrets.insert("s".into(), Arc::new(serde_json::from_str(r#"{"data":{"p":"eA=="}}"#).unwrap()));
        let file = |name: &str, text: &str, mode| (name.to_owned(), text.to_owned(), mode);
        assert_eq!(
            payload_of(r#"{"name":"v","configMap":{"name":"m"}}"#, &objects).unwrap(),
            [file("a", "1", 0o644), file("b", "2", 0o644)]
        );
        assert_eq!(
            payload_of(
                r#"{"name":"v","configMap":{"name":"m","items":[{"key":"a","path":"x/y","mode":256}]}}"#,
                &objects
            )
            .unwrap(),
            [file("x/y", "1", 0o400)]
        );
        assert_eq!(
            payload_of(r#"{"name":"v","secret":{"secretName":"s","defaultMode":384}}"#, &objects).unwrap(),
            [file("p", "x", 0o600)]
        );
        assert_eq!(
            payload_of(
                r#"{"name":"v","downwardAPI":{"items":[{"path":"l","fieldRef":{"fieldPath":"metadata.labels"}}]}}"#,
                &objects
            )
            .unwrap(),
            [file("l", "a=\"1\"\nb=\"2\"", 0o644)]
        );
        let both = r#"{"name":"v","projected":{"sources":[{"configMap":{"name":"m"}},{"secret":{"name":"s"}}]}}"#;
        assert_eq!(payload_of(both, &objects).unwrap().len(), 3);
    }

    #[test]
    fn what_is_missing_is_named_unless_optional() {
        let none = Objects::default();
        assert_eq!(
            payload_of(r#"{"name":"v","secret":{"secretName":"s"}}"#, &none),
            Err("secret \"s\" not found".to_owned())
        );
        assert_eq!(payload_of(r#"{"name":"v","configMap":{"name":"m","optional":true}}"#, &none), Ok(vec![]));
        let mut objects = Objects::default();
        objects.config_maps.insert("m".into(), Arc::new(serde_json::from_str(r#"{"data":{"a":"1"}}"#).unwrap()));
        objects.secrets.insert("s".into(), Arc::default());
        let item = r#""items":[{"key":"z","path":"z"}]"#;
        for (source, why) in [
            (format!(r#""configMap":{{"name":"m",{item}}}"#), "configmap references non-existent config key: z"),
            (format!(r#""secret":{{"secretName":"s",{item}}}"#), "references non-existent secret key: z"),
        ] {
            assert_eq!(payload_of(&format!(r#"{{"name":"v",{source}}}"#), &objects), Err(why.to_owned()));
        }
        for path in ["../z", "/z", "z/../y", "..z", "z//y", "./z", ""] {
            let volume =
                format!(r#"{{"name":"v","configMap":{{"name":"m","items":[{{"key":"a","path":"{path}"}}]}}}}"#);
            assert!(payload_of(&volume, &objects).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_token_is_for_who_shall_read_it() {
        for (spec, wanted) in [
            (r#"{"containers":[{"name":"a"}]}"#, (0o644, None)),
            (r#"{"containers":[{"name":"a"}],"securityContext":{"fsGroup":5,"runAsUser":7}}"#, (0o600, Some(7))),
            (r#"{"containers":[{"name":"a"}],"securityContext":{"fsGroup":5}}"#, (0o600, None)),
            (r#"{"containers":[{"name":"a"},{"name":"b"}],"securityContext":{"runAsUser":7}}"#, (0o600, Some(7))),
            (
                r#"{"containers":[{"name":"a"},{"name":"b","securityContext":{"runAsUser":8}}],"securityContext":{"runAsUser":7}}"#,
                (0o644, None),
            ),
        ] {
            let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
            assert_eq!(token_access(&pod, 0o644), wanted, "{spec}");
        }
    }

    #[test]
    fn tokens_and_amounts_are_files() {
        let volume = r#"{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"token"}},
            {"downwardAPI":{"items":[{"path":"cpu","resourceFieldRef":{"containerName":"c","resource":"limits.cpu","divisor":"1m"}}]}}]}}"#;
        assert!(payload_of(volume, &Objects::default()).is_err());
        let mut objects = Objects::default();
        objects.tokens.insert("token".into(), "secret".into());
        let files = payload_of(volume, &objects).unwrap();
        assert_eq!(files[0], ("cpu".to_owned(), "250".to_owned(), 0o644));
        assert_eq!(files[1].1, "secret");
    }
}
