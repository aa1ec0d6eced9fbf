//! Which files a configMap, secret, downwardAPI or projected volume holds. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume};

/// Files by their path in the volume.
pub(super) type Payload = BTreeMap<String, PayloadFile>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PayloadFile {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
}

/// The objects that a volume refers to; those that do not exist are absent.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) config_maps: BTreeMap<String, ConfigMap>,
    pub(super) secrets: BTreeMap<String, Secret>,
}

/// The plugin's name of a volume whose files come from objects, and whether they are kept in memory; nothing for
/// other kinds.
pub(super) fn plugin(volume: &Volume) -> Option<(&'static str, bool)> {
    match volume {
        Volume { config_map: Some(_), .. } => Some(("configmap", false)),
        Volume { secret: Some(_), .. } => Some(("secret", true)),
        Volume { downward_api: Some(_), .. } => Some(("downward-api", false)),
        Volume { projected: Some(_), .. } => Some(("projected", true)),
        _ => None,
    }
}

/// Names of ConfigMaps and Secrets that a volume refers to.
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

const DEFAULT_MODE: i32 = 0o644;

pub(super) fn payload(pod: &Pod, volume: &Volume, objects: &Objects) -> Result<Payload, String> {
    let mut out = Payload::new();
    let map = |name: &str, optional, items: Option<&[KeyToPath]>, mode, out: &mut Payload| {
        pick(&Asked { what: "configmap", name, optional, items, mode }, config_map(objects, name), out)
    };
    let hidden = |name: &str, optional, items: Option<&[KeyToPath]>, mode, out: &mut Payload| {
        pick(&Asked { what: "secret", name, optional, items, mode }, secret(objects, name), out)
    };
    if let Some(source) = &volume.config_map {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        map(&source.name, source.optional, source.items.as_deref(), mode, &mut out)?;
    }
    if let Some(source) = &volume.secret {
        let (name, mode) = (source.secret_name.as_deref().unwrap_or(""), source.default_mode.unwrap_or(DEFAULT_MODE));
        hidden(name, source.optional, source.items.as_deref(), mode, &mut out)?;
    }
    if let Some(source) = &volume.downward_api {
        downward_files(pod, source.items.as_deref(), source.default_mode.unwrap_or(DEFAULT_MODE), &mut out)?;
    }
    if let Some(projected) = &volume.projected {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                map(&source.name, source.optional, source.items.as_deref(), mode, &mut out)?;
            } else if let Some(source) = &source.secret {
                hidden(&source.name, source.optional, source.items.as_deref(), mode, &mut out)?;
            } else if let Some(source) = &source.downward_api {
                downward_files(pod, source.items.as_deref(), mode, &mut out)?;
            } else {
                return Err("a source of the projected volume is of a kind that is not supported yet".to_owned());
            }
        }
    }
    for path in out.keys() {
        let clean = !path.is_empty()
            && !path.starts_with('/')
            && path.split('/').all(|part| !part.is_empty() && part != ".." && part != ".");
        if !clean {
            return Err(format!("the path {path:?} of a file must be relative and must not contain '..'"));
        }
    }
    Ok(out)
}

/// What a source says of an object: which one, and which of its keys.
struct Asked<'a> {
    /// `configmap` or `secret`.
    what: &'a str,
    name: &'a str,
    optional: Option<bool>,
    items: Option<&'a [KeyToPath]>,
    mode: i32,
}

/// All keys, or those that are asked for under the names that are asked for; `data` is absent when the object is.
fn pick(asked: &Asked<'_>, data: Option<BTreeMap<String, Vec<u8>>>, out: &mut Payload) -> Result<(), String> {
    let Asked { what, name, items, mode, .. } = *asked;
    let optional = asked.optional == Some(true);
    let Some(data) = data else {
        return if optional { Ok(()) } else { Err(format!("{what} {name:?} not found")) };
    };
    let bits = |mode: i32| u32::try_from(mode).unwrap_or(0o644) & 0o777;
    match items {
        None => {
            for (key, bytes) in data {
                out.insert(key, PayloadFile { bytes, mode: bits(mode) });
            }
        }
        Some(items) => {
            for item in items {
                match data.get(&item.key) {
                    Some(bytes) => drop(out.insert(
                        item.path.clone(),
                        PayloadFile { bytes: bytes.clone(), mode: bits(item.mode.unwrap_or(mode)) },
                    )),
                    None if optional => {}
                    None => return Err(format!("{what} references non-existent key: {}", item.key)),
                }
            }
        }
    }
    Ok(())
}

/// The contents of a ConfigMap, by key; `None` when there is no such object.
fn config_map(objects: &Objects, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let map = objects.config_maps.get(name)?;
    let texts = map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    Some(texts.chain(map.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()))).collect())
}

/// The same of a Secret.
fn secret(objects: &Objects, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let secret = objects.secrets.get(name)?;
    Some(secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect())
}

fn downward_files(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: i32,
    out: &mut Payload,
) -> Result<(), String> {
    for item in items.into_iter().flatten() {
        let field = item
            .field_ref
            .as_ref()
            .ok_or_else(|| format!("the file {:?} of the downward API: only fieldRef is supported yet", item.path))?;
        let lines = |map: &Option<BTreeMap<String, String>>| -> String {
            map.iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect::<Vec<_>>().join("\n")
        };
        let keyed = |map: &Option<BTreeMap<String, String>>, prefix: &str| -> Option<String> {
            let key = field.field_path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']")?;
            Some(map.as_ref().and_then(|m| m.get(key).cloned()).unwrap_or_default())
        };
        let metadata = &pod.metadata;
        let text = match field.field_path.as_str() {
            "metadata.name" => metadata.name.clone().unwrap_or_default(),
            "metadata.namespace" => metadata.namespace.clone().unwrap_or_default(),
            "metadata.uid" => metadata.uid.clone().unwrap_or_default(),
            "metadata.labels" => lines(&metadata.labels),
            "metadata.annotations" => lines(&metadata.annotations),
            path => keyed(&metadata.labels, "metadata.labels")
                .or_else(|| keyed(&metadata.annotations, "metadata.annotations"))
                .ok_or_else(|| format!("the field {path:?} cannot be a file of the downward API"))?,
        };
        let mode = u32::try_from(item.mode.unwrap_or(mode)).unwrap_or(0o644) & 0o777;
        out.insert(item.path.clone(), PayloadFile { bytes: text.into_bytes(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload_of(volume: &str, objects: &Objects) -> Result<Vec<(String, String, u32)>, String> {
        let pod: Pod = serde_json::from_str(r#"{"metadata":{"name":"p","labels":{"b":"2","a":"1"}}}"#).unwrap();
        let volume: Volume = serde_json::from_str(volume).unwrap();
        let files = payload(&pod, &volume, objects)?;
        Ok(files.into_iter().map(|(k, f)| (k, String::from_utf8(f.bytes).unwrap(), f.mode)).collect())
    }

    #[test]
    fn files_of_each_kind() {
        let mut objects = Objects::default();
        objects.config_maps.insert("m".into(), serde_json::from_str(r#"{"data":{"a":"1","b":"2"}}"#).unwrap());
        objects.secrets.insert("s".into(), serde_json::from_str(r#"{"data":{"p":"eA=="}}"#).unwrap());
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
        objects.config_maps.insert("m".into(), serde_json::from_str(r#"{"data":{"a":"1"}}"#).unwrap());
        assert!(
            payload_of(r#"{"name":"v","configMap":{"name":"m","items":[{"key":"z","path":"z"}]}}"#, &objects).is_err()
        );
        assert!(
            payload_of(r#"{"name":"v","configMap":{"name":"m","items":[{"key":"a","path":"../z"}]}}"#, &objects)
                .is_err()
        );
    }
}
