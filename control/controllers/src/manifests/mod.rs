//! Applies the manifests in a directory to the API at start and whenever a file changes. Knows a `kube::Client` and
//! nothing else. `merge` is pure and may not import tokio, the file system or kube; this file is the loop.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    backoff::Backoff,
    manifests::{self, Document, ManifestDir, Scanned, format_of},
    repairs::Repair,
};

use crate::rest_mapper::{Kind, RestMapper};

mod merge;
#[cfg(test)]
mod tests;

/// Annotation with the last applied object, for removing fields that a file no longer has.
const LAST_APPLIED: &str = "windlass.io/last-applied";
/// Maximum size of the annotation; all annotations of an object together may have 256 KiB.
const MAX_ANNOTATION_BYTES: usize = 200 * 1024;
/// Interval of rescans without a notification.
const RESCAN_INTERVAL: Duration = Duration::from_secs(300);
/// Retry interval of an unreadable directory.
const UNREADABLE_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Back-off of a file with an object that failed.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Why an object could not be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API has no such kind.
    #[error("the API serves no kind {kind} in {api_version}; correct the file, or install what serves it")]
    UnknownKind {
        /// As the file names it.
        api_version: String,
        /// As the file names it.
        kind: String,
    },
    /// The API refused or could not be reached.
    #[error("failed to {action}: {}", windlass_kit::client::message(.source))]
    Api {
        /// What was attempted.
        action: &'static str,
        /// The API's answer.
        source: Box<kube::Error>,
    },
    /// The document is not a valid object.
    #[error("the document is not a valid object: {0}")]
    Shape(serde_json::Error),
}

/// The state of a file.
#[derive(Debug)]
struct File {
    hash: u64,
    /// Its objects when it was last read.
    objects: BTreeSet<String>,
    /// When it is retried, if an object failed.
    retry: Option<Instant>,
    backoff: Backoff,
}

/// Applies the manifests of `dir` until `shutdown`. An invalid file is logged with its line and does not affect the
/// others; failed objects are retried with back-off. Objects of removed files stay.
///
/// # Errors
/// None at present: an unreadable directory is logged and retried.
pub async fn run(client: Client, dir: PathBuf, shutdown: CancellationToken) -> Result<(), std::io::Error> {
    let mut applier = Applier { client, kinds: BTreeMap::new(), files: BTreeMap::new() };
    let mut directory = ManifestDir::new(dir);
    loop {
        let sync = async {
            match directory.scan().await {
                Some(scanned) => applier.sync(scanned).await,
                None => Instant::now() + UNREADABLE_RETRY_INTERVAL,
            }
        };
        let next = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            next = sync => next,
        };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = directory.changed(next) => {}
        }
    }
}

struct Applier {
    client: Client,
    /// By apiVersion.
    kinds: BTreeMap<String, RestMapper>,
    files: BTreeMap<PathBuf, File>,
}

impl Applier {
    /// Applies changed files; returns when to sync again at the latest.
    async fn sync(&mut self, scanned: Scanned) -> Instant {
        let removed: Vec<PathBuf> = self.files.keys().filter(|path| !scanned.contains_key(*path)).cloned().collect();
        for path in removed {
            if let Some(file) = self.files.remove(&path)
                && !file.objects.is_empty()
            {
                let objects = file.objects.iter().cloned().collect::<Vec<_>>().join(", ");
                tracing::info!(file = %path.display(), objects, "manifest file removed; its objects stay until they are deleted");
            }
        }
        for (path, text) in scanned {
            self.sync_file(&path, text).await;
        }
        // Discovery is repeated in the next pass that needs it.
        self.kinds.clear();
        let next = self.files.values().filter_map(|f| f.retry).min();
        let rescan = Instant::now() + Repair::ManifestRescan.period(RESCAN_INTERVAL);
        next.into_iter().chain([rescan]).min().unwrap_or_else(Instant::now)
    }

    async fn sync_file(&mut self, path: &Path, text: Result<String, String>) {
        let hash = {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            hasher.finish()
        };
        let known = self.files.get(path).filter(|file| file.hash == hash);
        if known.is_some_and(|file| file.retry.is_none_or(|at| at > Instant::now())) {
            return;
        }
        let mut backoff =
            known.map_or_else(|| Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1), |file| file.backoff.clone());
        let again = known.is_some();
        let (documents, broken) = match &text {
            Ok(text) => {
                let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                format_of(name).map(|format| manifests::read(text, format)).unwrap_or_default()
            }
            Err(reason) => {
                tracing::error!(file = %path.display(), reason, "failed to read manifest; others are applied");
                Default::default()
            }
        };
        if !again {
            for error in broken {
                tracing::error!(
                    file = %path.display(), line = error.line, reason = error.reason,
                    "invalid manifest; others are applied"
                );
            }
        }
        let mut retry = false;
        for document in &documents {
            match self.apply(document).await {
                Ok(Some(done)) => tracing::info!(file = %path.display(), object = document.show(), "{done}"),
                Ok(None) => {}
                Err(error) => {
                    retry = true;
                    tracing::error!(
                        file = %path.display(), line = document.line, object = document.show(), reason = %error,
                        "failed to apply object of manifest; retrying"
                    );
                }
            }
        }
        let objects: BTreeSet<String> = documents.iter().map(Document::show).collect();
        if let Some(old) = self.files.get(path) {
            let dropped: Vec<&str> = old.objects.difference(&objects).map(String::as_str).collect();
            if !dropped.is_empty() {
                tracing::info!(file = %path.display(), objects = dropped.join(", "), "objects removed from manifest file; they stay until they are deleted");
            }
        }
        let retry = retry.then(|| Instant::now() + backoff.next_delay());
        self.files.insert(path.to_owned(), File { hash, objects, retry, backoff });
    }

    /// The kind of a document; each group version is discovered once per pass.
    async fn kind(&mut self, document: &Document) -> Result<std::sync::Arc<Kind>, Error> {
        let version = &document.api_version;
        if !self.kinds.contains_key(version) {
            let kinds =
                RestMapper::of_version(&self.client, version).await.map_err(api_error("read the API's kinds"))?;
            self.kinds.insert(version.clone(), kinds);
        }
        self.kinds
            .get(version)
            .and_then(|kinds| kinds.find(version, &document.kind))
            .ok_or_else(|| Error::UnknownKind { api_version: version.clone(), kind: document.kind.clone() })
    }

    /// Creates or updates an object; returns what was done.
    async fn apply(&mut self, document: &Document) -> Result<Option<&'static str>, Error> {
        let kind = self.kind(document).await?;
        let api = kind.api(&self.client, document.namespace.as_deref().unwrap_or("default"));
        let Some(live) = api.get_opt(&document.name).await.map_err(api_error("read the object"))? else {
            let object: DynamicObject =
                serde_json::from_value(with_annotation(&document.value)).map_err(Error::Shape)?;
            api.create(&PostParams::default(), &object).await.map_err(api_error("create the object"))?;
            return Ok(Some("created"));
        };
        let version = live.metadata.resource_version.clone();
        let annotation = live.metadata.annotations.as_ref().and_then(|a| a.get(LAST_APPLIED)).cloned();
        let last: Value = annotation.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
        if last == document.value {
            return Ok(None);
        }
        let live = serde_json::to_value(live).map_err(Error::Shape)?;
        let mut patch = merge::patch(&last, &document.value, &live);
        if patch.is_empty() && last.is_null() && annotation_of(&document.value).is_none() {
            return Ok(None);
        }
        let meta = patch.entry("metadata").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert("resourceVersion".to_owned(), json!(version));
            let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
            if annotations.is_null() {
                *annotations = json!({});
            }
            // Null removes an annotation that would be too long.
            annotations[LAST_APPLIED] = annotation_of(&document.value).map_or(Value::Null, Value::String);
        }
        let params = PatchParams::default();
        let patched = api.patch(&document.name, &params, &Patch::Merge(Value::Object(patch))).await;
        patched.map_err(api_error("update the object"))?;
        Ok(Some("updated"))
    }
}

fn api_error(action: &'static str) -> impl Fn(kube::Error) -> Error {
    move |source| Error::Api { action, source: Box::new(source) }
}

fn annotation_of(value: &Value) -> Option<String> {
    Some(value.to_string()).filter(|text| text.len() <= MAX_ANNOTATION_BYTES)
}

/// The object with the last-applied annotation, unless that would be too long.
fn with_annotation(value: &Value) -> Value {
    let mut object = value.clone();
    if let (Some(text), Some(meta)) = (annotation_of(value), object.get_mut("metadata").and_then(Value::as_object_mut))
    {
        let annotations = meta.entry("annotations").or_insert_with(|| json!({}));
        if annotations.is_null() {
            *annotations = json!({});
        }
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(LAST_APPLIED.to_owned(), Value::String(text));
        }
    }
    object
}
