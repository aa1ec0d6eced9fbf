//! The configuration of admission plugins, a file as that of upstream's `--admission-control-config-file`
//! (`apiserver.config.k8s.io`).

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::pod_security;
use crate::schema::{ContentType, decode};

const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

/// The configuration of plugins, read at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AdmissionConfiguration {
    pub(super) pod_security: pod_security::Configuration,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the admission configuration {path} cannot be used: {reason}")]
pub struct AdmissionError {
    /// The file.
    path: PathBuf,
    /// Why.
    reason: String,
}

impl AdmissionConfiguration {
    /// Reads the file, and those that it names, which are relative to it.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub(crate) fn read(path: &Path) -> Result<Self, AdmissionError> {
        let wrong = |reason: String| AdmissionError { path: path.to_owned(), reason };
        let value = yaml(path)?;
        let version = value["apiVersion"].as_str().unwrap_or("");
        if value["kind"] != "AdmissionConfiguration" || !VERSIONS.contains(&version) {
            let wanted = VERSIONS[0];
            return Err(wrong(format!("it is not of apiVersion {wanted} and kind AdmissionConfiguration")));
        }
        check_fields(&value, &["apiVersion", "kind", "plugins"]).map_err(wrong)?;
        let mut read = Self::default();
        for plugin in value["plugins"].as_array().into_iter().flatten() {
            check_fields(plugin, &["name", "path", "configuration"]).map_err(wrong)?;
            let name = plugin["name"].as_str().unwrap_or("");
            if name != "PodSecurity" {
                tracing::warn!(
                    plugin = name,
                    "the plugin has no configuration here: what the file says of it is ignored"
                );
                continue;
            }
            let told = match plugin["path"].as_str().filter(|path| !path.is_empty()) {
                Some(named) => yaml(&path.parent().unwrap_or(Path::new("/")).join(named))?,
                None => plugin["configuration"].clone(),
            };
            if !told.is_null() {
                read.pod_security = pod_security::Configuration::parse(&told).map_err(wrong)?;
            }
        }
        Ok(read)
    }
}

fn yaml(path: &Path) -> Result<Value, AdmissionError> {
    let wrong = |reason: String| AdmissionError { path: path.to_owned(), reason };
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    Ok(decode(&text, ContentType::Yaml).map_err(wrong)?.value)
}

/// Refuses fields that a configuration does not have: a typing error must not change what is refused.
pub(super) fn check_fields(value: &Value, known: &[&str]) -> Result<(), String> {
    let unknown = value.as_object().into_iter().flatten().find(|(field, _)| !known.contains(&field.as_str()));
    unknown.map_or(Ok(()), |(field, _)| Err(format!("strict decoding error: unknown field {field:?}")))
}
