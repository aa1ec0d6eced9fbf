//! Which images this node has pulled, and what with: an image that is there was perhaps pulled with a secret that the
//! next pod does not have. Kept on disk in kubelet's form (`image_manager/pulling` and `image_manager/pulled`, one file for
//! each), so that a restart forgets nothing. Who may use an image is decided by pure functions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use windlass_kit::{atomic_file, blocking, objects::image::Reference};

use super::credentials::{Credentials, Source};
use crate::engine::images::{Image, Stored, familiar};

/// When pods must show credentials for an image that is there already: `imagePullCredentialsVerificationPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verification {
    /// Never.
    Never,
    /// For images that this node has pulled; those that were loaded are anybody's.
    #[default]
    NotPreloaded,
    /// For all but these: names of repositories, or beginnings of them that end in `/*`.
    NotListed(Vec<String>),
    /// For all.
    Always,
}

impl Verification {
    /// Reads a setting and the list that belongs to one of its values.
    ///
    /// # Errors
    /// What is wrong with either.
    pub fn read(policy: &str, list: &[String]) -> Result<Self, String> {
        let read = match policy {
            "NeverVerify" => Self::Never,
            "NeverVerifyPreloadedImages" => Self::NotPreloaded,
            "AlwaysVerify" => Self::Always,
            "NeverVerifyAllowlistedImages" => {
                return match list.iter().find(|pattern| !is_pattern(pattern)) {
                    None => Ok(Self::NotListed(list.to_vec())),
                    Some(wrong) => Err(format!(
                        "preloadedImagesVerificationAllowlist {wrong:?} is neither an image without tag and digest, nor the beginning of some with /* behind it"
                    )),
                };
            }
            other => {
                return Err(format!(
                    "imagePullCredentialsVerificationPolicy {other:?} is none of NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages and AlwaysVerify"
                ));
            }
        };
        if list.is_empty() {
            return Ok(read);
        }
        Err("preloadedImagesVerificationAllowlist is set, which imagePullCredentialsVerificationPolicy \
             NeverVerifyAllowlistedImages alone reads"
            .to_owned())
    }

    /// Whether a pod must show credentials for an image, which this node has `pulled` or not.
    fn asks(&self, image: &Reference, pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded => pulled,
            Self::Always => true,
            Self::NotListed(list) => {
                let name = image.repository();
                !list.iter().any(|one| one.strip_suffix('*').map_or(*one == name, |start| name.starts_with(start)))
            }
        }
    }
}

fn is_pattern(text: &str) -> bool {
    match text.strip_suffix("/*") {
        Some(start) => !start.is_empty() && !start.contains(['*', ' ']),
        None => Reference::parse(text).is_some_and(|image| image.repository() == text),
    }
}

/// Who may use an image under one of its names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Access {
    /// Everybody on this node: it was pulled with what the node itself has, or with nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<Secret>,
}

/// A pull secret that an image was pulled with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

impl Secret {
    fn of(shown: &Credentials) -> Option<Self> {
        let Source::Secret { uid, namespace, name } = &shown.source else { return None };
        let (uid, namespace, name) = (uid.clone(), namespace.clone(), name.clone());
        Some(Self { uid, namespace, name, credential_hash: shown.hash() })
    }

    fn is_at(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl Access {
    /// What a pull with these credentials proves.
    fn by(shown: Option<&Credentials>) -> Self {
        match shown.and_then(Secret::of) {
            Some(secret) => Self { kubernetes_secrets: vec![secret], ..Self::default() },
            None => Self { node_pods_accessible: true, ..Self::default() },
        }
    }

    /// Takes in what another pull has proved. A secret whose content has changed takes its own place.
    fn merge(&mut self, new: Self) {
        self.node_pods_accessible |= new.node_pods_accessible;
        for secret in new.kubernetes_secrets {
            self.kubernetes_secrets.retain(|known| !known.is_at(&secret));
            self.kubernetes_secrets.push(secret);
        }
        let excess = self.kubernetes_secrets.len().saturating_sub(MOST_SECRETS);
        self.kubernetes_secrets.drain(..excess);
    }
}

/// Secrets that are remembered of one image, so that a turnover of namespaces does not grow a file without an end.
const MOST_SECRETS: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: Timestamp,
    /// The image's id in Docker.
    image_ref: String,
    /// By names without tag and digest.
    #[serde(default)]
    credential_mapping: BTreeMap<String, Access>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// What a pod that wants an image that is there has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Use,
    /// As before, and these are known from now on: a secret of the same content, or the same one with another content.
    UseAndNote(Access),
    Pull,
}

/// `record` is what is known of the image; it may be none of an image that was `pulled` under this name all the same.
fn judge(
    policy: &Verification,
    image: &Reference,
    pulled: bool,
    record: Option<&Record>,
    shown: &[Credentials],
) -> Verdict {
    if !policy.asks(image, pulled) {
        return Verdict::Use;
    }
    let Some(access) = record.and_then(|r| r.credential_mapping.get(&image.repository())) else { return Verdict::Pull };
    if access.node_pods_accessible {
        return Verdict::Use;
    }
    for own in shown.iter().filter_map(Secret::of) {
        let same = access.kubernetes_secrets.iter().filter(|known| known.credential_hash == own.credential_hash);
        let here: Vec<&Secret> = same.collect();
        if here.iter().any(|known| known.is_at(&own)) {
            return Verdict::Use;
        }
        if !here.is_empty() || access.kubernetes_secrets.iter().any(|known| known.is_at(&own)) {
            return Verdict::UseAndNote(Access { kubernetes_secrets: vec![own], ..Access::default() });
        }
    }
    Verdict::Pull
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<String, Record>,
    /// Names of files that cannot be read: of images that were pulled, nobody knows what with.
    broken: BTreeSet<String>,
    /// Pulls under way, by name of the image; zero for those that an earlier start has left.
    pulling: BTreeMap<String, usize>,
}

/// The records of one node; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
    policy: Arc<Verification>,
    /// Held while a file is written, so that the last word on disk is the last one here.
    state: Arc<tokio::sync::Mutex<State>>,
}

impl Records {
    /// Reads what an earlier start has left below `dir`.
    pub(super) fn open(dir: PathBuf, policy: Verification) -> Self {
        let mut state = State::default();
        for (name, text) in files(&dir.join("pulled")) {
            match serde_json::from_str::<Record>(&text) {
                Ok(record) => drop(state.records.insert(record.image_ref.clone(), record)),
                Err(error) => {
                    tracing::warn!(file = name, %error, "a record of a pull cannot be read; its image is asked for again");
                    state.broken.insert(name);
                }
            }
        }
        for (name, text) in files(&dir.join("pulling")) {
            match serde_json::from_str::<Intent>(&text) {
                Ok(intent) => drop(state.pulling.insert(intent.image, 0)),
                Err(error) => tracing::warn!(file = name, %error, "a record of a pull that was begun cannot be read"),
            }
        }
        Self { dir, policy: Arc::new(policy), state: Arc::new(tokio::sync::Mutex::new(state)) }
    }

    /// Whether an image that is there can be used whoever asks: no secrets need to be read then.
    pub(crate) async fn is_for_all(&self, image: &Reference, found: &Image) -> bool {
        let state = self.state.lock().await;
        state.judge(&self.policy, image, found, &[]) == Verdict::Use
    }

    /// Whether a pod that shows these credentials must have an image pulled that is there.
    pub(crate) async fn must_pull(&self, image: &Reference, found: &Image, shown: &[Credentials]) -> bool {
        let mut state = self.state.lock().await;
        match state.judge(&self.policy, image, found, shown) {
            Verdict::Use => false,
            Verdict::Pull => true,
            Verdict::UseAndNote(access) => {
                self.note(&mut state, image, &found.id, Some(access)).await;
                false
            }
        }
    }

    /// Takes note of a pull before it begins: should this process end in the middle of it, the image is not taken for
    /// one that was loaded.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(crate) async fn begin(&self, image: &Reference) -> io::Result<()> {
        let mut state = self.state.lock().await;
        let image = image.to_string();
        if !state.pulling.contains_key(&image) {
            let intent =
                Intent { kind: "ImagePullIntent".into(), api_version: API_VERSION.into(), image: image.clone() };
            self.write("pulling", &image, serde_json::to_vec(&intent)?).await?;
        }
        *state.pulling.entry(image).or_default() += 1;
        Ok(())
    }

    /// Takes note of a pull that worked, and of the credentials that the registry took, if it asked for any.
    pub(crate) async fn pulled(&self, image: &Reference, id: &str, with: Option<&Credentials>) {
        let mut state = self.state.lock().await;
        if self.note(&mut state, image, id, Some(Access::by(with))).await {
            self.end(&mut state, &image.to_string()).await;
        }
    }

    /// Takes note of a pull that did not work.
    pub(crate) async fn failed(&self, image: &Reference) {
        let mut state = self.state.lock().await;
        self.end(&mut state, &image.to_string()).await;
    }

    /// Forgets images that are gone, unless they came after the store was listed, and makes records of those whose pull
    /// an earlier start did not see the end of.
    pub(super) async fn settle(&self, stored: &[Stored], listed: Timestamp) {
        let mut state = self.state.lock().await;
        let left: Vec<String> =
            state.pulling.iter().filter(|(_, n)| **n == 0).map(|(image, _)| image.clone()).collect();
        for name in left {
            let Some(image) = Reference::parse(&name) else { continue };
            let called = familiar(&name);
            let there = stored.iter().find(|s| s.tags.iter().chain(&s.digests).any(|known| *known == called));
            if let Some(there) = there
                && self.note(&mut state, &image, &there.id, None).await
            {
                self.end(&mut state, &name).await;
            }
        }
        let gone = |record: &Record| {
            record.last_updated_time < listed && !stored.iter().any(|image| image.id == record.image_ref)
        };
        let gone: Vec<String> = state.records.values().filter(|r| gone(r)).map(|r| r.image_ref.clone()).collect();
        for id in gone {
            self.remove("pulled", &id).await;
            state.records.remove(&id);
        }
    }

    /// Adds to the record of an image; whether that is on disk.
    async fn note(&self, state: &mut State, image: &Reference, id: &str, access: Option<Access>) -> bool {
        let known = state.records.get(id);
        let mut record = known.cloned().unwrap_or_else(|| Record {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: Timestamp::now(),
            image_ref: id.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        if let Some(access) = access {
            record.credential_mapping.entry(image.repository()).or_default().merge(access);
        }
        if known == Some(&record) {
            return true;
        }
        record.last_updated_time = Timestamp::now();
        let written = match serde_json::to_vec(&record) {
            Ok(text) => self.write("pulled", id, text).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &written {
            tracing::warn!(%image, %error, "the record of a pull could not be written; after a restart the image is asked for again");
        }
        state.broken.remove(&file_of(id));
        state.records.insert(id.to_owned(), record);
        written.is_ok()
    }

    async fn end(&self, state: &mut State, image: &str) {
        match state.pulling.get_mut(image) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.remove("pulling", image).await;
                state.pulling.remove(image);
            }
            None => {}
        }
    }

    async fn write(&self, folder: &str, name: &str, text: Vec<u8>) -> io::Result<()> {
        let dir = self.dir.join(folder);
        let file = dir.join(file_of(name));
        let writing = move || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            atomic_file::write(&file, &text, 0o600)
        };
        blocking::io(writing).await
    }

    async fn remove(&self, folder: &str, name: &str) {
        let file = self.dir.join(folder).join(file_of(name));
        let shown = file.display().to_string();
        match tokio::task::spawn_blocking(move || fs::remove_file(file)).await {
            Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = shown, %error, "a record of a pull could not be removed");
            }
            _ => {}
        }
    }
}

impl State {
    fn judge(&self, policy: &Verification, image: &Reference, found: &Image, shown: &[Credentials]) -> Verdict {
        let record = self.records.get(&found.id);
        // Who has pulled a copy of an image makes no secret of the one that was loaded under another name. A pod that
        // names it by its id must show what it was pulled with, under whichever name.
        let by_this_name = |record: &Record| {
            let known = &record.credential_mapping;
            !found.named || known.is_empty() || known.contains_key(&image.repository())
        };
        let pulled = record.is_some_and(by_this_name)
            || self.broken.contains(&file_of(&found.id))
            || self.pulling.contains_key(&image.to_string());
        judge(policy, image, pulled, record, shown)
    }
}

/// The files of a folder with their texts; those that writing was broken off of are hidden.
fn files(dir: &Path) -> Vec<(String, String)> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(dir = %dir.display(), %error, "records of pulls could not be read");
            }
            return Vec::new();
        }
    };
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let records = entries.flatten().filter(|entry| name(entry).starts_with("sha256-"));
    records.map(|entry| (name(&entry), fs::read_to_string(entry.path()).unwrap_or_default())).collect()
}

fn file_of(name: &str) -> String {
    format!("sha256-{}", hex_of(name.as_bytes()))
}

/// The SHA-256 of something, in hexadecimal digits.
pub(super) fn hex_of(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
