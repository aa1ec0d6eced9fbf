//! Applies the objects in a folder's files to the API at start and whenever a file changes. Knows a
//! `kube::Client` and nothing else. `merge` is pure and may not import tokio, the
//! file system or kube; this file is the loop.

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
    manifests::{self, Document, Folder, Scanned, format_of},
};

use crate::controllers::kinds::{Kind, Kinds};

mod merge;
#[cfg(test)]
mod tests;

/// Holds what a file said last time, so that what it says no more can be taken away.
const LAST_APPLIED: &str = "windlass.io/last-applied";
/// All annotations of an object together may have 256 KiB.
const LONGEST_ANNOTATION: usize = 200 * 1024;
/// The folder is read anew this often even when nothing tells of a change.
const RESCAN: Duration = Duration::from_secs(300);
/// A folder that could not be read is tried again after this.
const UNREADABLE: Duration = Duration::from_secs(30);
/// Back-off of a file that the API refused.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Why one object could not be applied.
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
    #[error("could not {action}: {source}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// The API's answer.
        source: Box<kube::Error>,
    },
    /// The file gives a form that cannot be an object.
    #[error("the object cannot be written as one: {0}")]
    Shape(serde_json::Error),
}

/// What is remembered of a file.
#[derive(Debug)]
struct File {
    hash: u64,
    /// Objects that it held when it was last read.
    objects: BTreeSet<String>,
    /// When it is tried again, if the API refused some of it.
    retry: Option<Instant>,
    backoff: Backoff,
}

/// Applies `dir` until `shutdown`. A broken file is logged with its line and the others still
/// apply; what the API refuses is tried again with back-off. Objects of files that go stay.
///
/// # Errors
/// None at present: a folder that cannot be read is logged and looked for again.
pub async fn run(client: Client, dir: PathBuf, shutdown: CancellationToken) -> Result<(), std::io::Error> {
    let mut applied = Applied { client, kinds: BTreeMap::new(), files: BTreeMap::new() };
    let mut folder = Folder::new(dir);
    loop {
        let round = async {
            match folder.scan().await {
                Some(scanned) => applied.round(scanned).await,
                None => Instant::now() + UNREADABLE,
            }
        };
        let next = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            next = round => next,
        };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = folder.changed(next) => {}
        }
    }
}

struct Applied {
    client: Client,
    /// By apiVersion.
    kinds: BTreeMap<String, Kinds>,
    files: BTreeMap<PathBuf, File>,
}

impl Applied {
    /// Applies what has changed; returns when to do so again at the latest.
    async fn round(&mut self, scanned: Scanned) -> Instant {
        let gone: Vec<PathBuf> = self.files.keys().filter(|path| !scanned.contains_key(*path)).cloned().collect();
        for path in gone {
            if let Some(file) = self.files.remove(&path)
                && !file.objects.is_empty()
            {
                let objects = file.objects.iter().cloned().collect::<Vec<_>>().join(", ");
                tracing::info!(file = %path.display(), objects, "the file is gone; its objects stay until they are deleted by hand");
            }
        }
        for (path, text) in scanned {
            self.one_file(&path, text).await;
        }
        // Kinds are looked up anew in the next round that needs them.
        self.kinds.clear();
        let next = self.files.values().filter_map(|f| f.retry).min();
        next.into_iter().chain([Instant::now() + RESCAN]).min().unwrap_or_else(Instant::now)
    }

    async fn one_file(&mut self, path: &Path, text: Result<String, String>) {
        let hash = {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            hasher.finish()
        };
        let known = self.files.get(path).filter(|file| file.hash == hash);
        if known.is_some_and(|file| file.retry.is_none_or(|at| at > Instant::now())) {
            return;
        }
        let mut backoff = known.map_or_else(|| Backoff::new(RETRY.0, RETRY.1), |file| file.backoff.clone());
        let again = known.is_some();
        let (documents, broken) = match &text {
            Ok(text) => {
                let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                format_of(name).map(|format| manifests::read(text, format)).unwrap_or_default()
            }
            Err(reason) => {
                tracing::error!(file = %path.display(), reason, "a manifest cannot be applied; the others are");
                Default::default()
            }
        };
        if !again {
            for error in broken {
                tracing::error!(
                    file = %path.display(), line = error.line, reason = error.reason,
                    "a manifest is broken; the others are applied, and this one when it is corrected"
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
                        "a manifest's object could not be applied; it is tried again"
                    );
                }
            }
        }
        let objects: BTreeSet<String> = documents.iter().map(Document::show).collect();
        if let Some(old) = self.files.get(path) {
            let dropped: Vec<&str> = old.objects.difference(&objects).map(String::as_str).collect();
            if !dropped.is_empty() {
                tracing::info!(file = %path.display(), objects = dropped.join(", "), "the file no longer holds these objects; they stay until they are deleted by hand");
            }
        }
        let retry = retry.then(|| Instant::now() + backoff.next_delay());
        self.files.insert(path.to_owned(), File { hash, objects, retry, backoff });
    }

    /// The kind of a document; each group's version is read once a round.
    async fn kind(&mut self, document: &Document) -> Result<std::sync::Arc<Kind>, Error> {
        let version = &document.api_version;
        if !self.kinds.contains_key(version) {
            let kinds = Kinds::of_version(&self.client, version).await.map_err(api_error("read the API's kinds"))?;
            self.kinds.insert(version.clone(), kinds);
        }
        self.kinds
            .get(version)
            .and_then(|kinds| kinds.find(version, &document.kind))
            .ok_or_else(|| Error::UnknownKind { api_version: version.clone(), kind: document.kind.clone() })
    }

    /// Creates or updates one object; says what it did.
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
            // Null takes it away where it would be too long.
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
    Some(value.to_string()).filter(|text| text.len() <= LONGEST_ANNOTATION)
}

/// The object with its own text as an annotation, unless that would be too long.
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
