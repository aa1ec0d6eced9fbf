//! Records of the images that this node has pulled and the credentials that it used: an image in the store may have
//! been pulled with a secret that the next pod does not have. Stored on disk in kubelet's form (`image_manager/pulling`
//! and `image_manager/pulled`, one file for each record), so that they survive a restart. Whether a pod may use an
//! image is decided by pure functions.

mod credential_verification;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use windlass_kit::{atomic_file, blocking::RECORDS, disk, objects::image::Reference};

pub use self::credential_verification::PullVerificationPolicy;
use super::credentials::{Credentials, Source};
use crate::engine::images::{Image, ImageSummary, familiar};

/// Which pods may use an image under one of its names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Access {
    /// All pods of the node: it was pulled with the node's credentials, or anonymously.
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
    fn of(credentials: &Credentials) -> Option<Self> {
        let Source::Secret { uid, namespace, name } = &credentials.source else { return None };
        let (uid, namespace, name) = (uid.clone(), namespace.clone(), name.clone());
        Some(Self { uid, namespace, name, credential_hash: credentials.hash() })
    }

    fn same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl Access {
    /// The access that a successful pull with these credentials proves.
    fn from_pull(credentials: Option<&Credentials>) -> Self {
        match credentials.and_then(Secret::of) {
            Some(secret) => Self { kubernetes_secrets: vec![secret], ..Self::default() },
            None => Self { node_pods_accessible: true, ..Self::default() },
        }
    }

    /// Adds the access that another pull has proved. A secret whose content has changed replaces its former record.
    fn merge(&mut self, new: Self) {
        self.node_pods_accessible |= new.node_pods_accessible;
        for secret in new.kubernetes_secrets {
            self.kubernetes_secrets.retain(|known| !known.same_object(&secret));
            self.kubernetes_secrets.push(secret);
        }
        let excess = self.kubernetes_secrets.len().saturating_sub(MAX_SECRETS);
        self.kubernetes_secrets.drain(..excess);
    }
}

/// Most secrets in the record of one image, so that short-lived namespaces do not grow its file without bound.
const MAX_SECRETS: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: Timestamp,
    /// The image's id in Docker.
    image_ref: String,
    /// By repository: the name without tag and digest.
    #[serde(default)]
    credential_mapping: BTreeMap<String, Access>,
    /// The names that it was pulled under; not of kubelet's form. Records of earlier versions have none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pulled_as: BTreeSet<String>,
}

impl PulledRecord {
    /// Whether the node pulled the image and no one has tagged it since: only then may the node remove it, since
    /// removal takes all of its names.
    fn is_own(&self, image: &ImageSummary) -> bool {
        let in_repository = |name: &String| {
            Reference::parse(name).is_some_and(|name| self.credential_mapping.contains_key(&name.repository()))
        };
        let pulled = |tag: &String| match self.pulled_as.is_empty() {
            true => in_repository(tag),
            false => self.pulled_as.contains(tag),
        };
        // A pull that was interrupted leaves no repository: the image's owner is unknown.
        !self.credential_mapping.is_empty() && image.tags.iter().all(pulled) && image.digests.iter().all(in_repository)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PullIntent {
    kind: String,
    api_version: String,
    image: String,
    /// The id of the image that had this name when the pull began, empty for none; not of kubelet's form. Absent in
    /// intents of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// A pull that has begun.
#[derive(Debug, Clone, Default)]
struct Pulling {
    /// How many run; zero for one of an earlier process.
    count: usize,
    /// See [`PullIntent::before`].
    before: Option<String>,
}

impl Pulling {
    /// Whether what has the name now, with this id, may be what was pulled; else it was there before.
    fn may_have_pulled(&self, id: &str) -> bool {
        self.before.as_deref() != Some(id)
    }
}

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// What a pod does with an image that is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PullDecision {
    Use,
    /// Use it and record this access: a secret of the same content, or the same secret with another content.
    UseAndRecord(Access),
    Pull,
}

/// `record` is that of the image, if there is one; an image that was `pulled` under this name may have none.
fn decide(
    policy: &PullVerificationPolicy,
    image: &Reference,
    pulled: bool,
    record: Option<&PulledRecord>,
    credentials: &[Credentials],
) -> PullDecision {
    if !policy.requires_verification(image, pulled) {
        return PullDecision::Use;
    }
    let Some(access) = record.and_then(|r| r.credential_mapping.get(&image.repository())) else {
        return PullDecision::Pull;
    };
    if access.node_pods_accessible {
        return PullDecision::Use;
    }
    for own in credentials.iter().filter_map(Secret::of) {
        let same = access.kubernetes_secrets.iter().filter(|known| known.credential_hash == own.credential_hash);
        let here: Vec<&Secret> = same.collect();
        if here.iter().any(|known| known.same_object(&own)) {
            return PullDecision::Use;
        }
        if !here.is_empty() || access.kubernetes_secrets.iter().any(|known| known.same_object(&own)) {
            return PullDecision::UseAndRecord(Access { kubernetes_secrets: vec![own], ..Access::default() });
        }
    }
    PullDecision::Pull
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<String, PulledRecord>,
    /// Names of files that cannot be parsed: their images were pulled with unknown credentials.
    unreadable: BTreeSet<String>,
    /// The same of intents: what has one of these names may have been pulled.
    unreadable_intents: BTreeSet<String>,
    /// Why a directory could not be read: any image may have been pulled, with any credentials.
    unknown: Option<String>,
    /// Pulls in progress, by name of the image.
    pulling: BTreeMap<String, Pulling>,
}

/// The pull records of the node; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct PullRecords {
    dir: PathBuf,
    policy: Arc<PullVerificationPolicy>,
    /// Locked while a file is written, so that disk and memory agree on the last write.
    state: Arc<tokio::sync::Mutex<State>>,
}

impl PullRecords {
    /// Reads the records of earlier processes below `dir`.
    pub(super) fn open(dir: PathBuf, policy: PullVerificationPolicy) -> Self {
        let mut state = State::default();
        let mut read = |subdir| {
            read_files(&dir.join(subdir)).unwrap_or_else(|error| {
                tracing::error!(dir = %dir.join(subdir).display(), %error, "failed to read image pull records; pulling all images again when they are used, until a restart can read them");
                state.unknown = Some(error.to_string());
                Vec::new()
            })
        };
        let (pulled, pulling) = (read("pulled"), read("pulling"));
        for (name, text) in pulled {
            match serde_json::from_str::<PulledRecord>(&text) {
                Ok(record) => drop(state.records.insert(record.image_ref.clone(), record)),
                Err(error) => {
                    tracing::warn!(file = name, %error, "failed to parse image pull record; pulling the image again when it is used");
                    state.unreadable.insert(name);
                }
            }
        }
        for (name, text) in pulling {
            match serde_json::from_str::<PullIntent>(&text) {
                Ok(PullIntent { image, before, .. }) => {
                    state.pulling.insert(image, Pulling { count: 0, before });
                }
                Err(error) => {
                    tracing::warn!(file = name, %error, "failed to parse image pull intent; pulling its image again when it is used");
                    state.unreadable_intents.insert(name);
                }
            }
        }
        Self { dir, policy: Arc::new(policy), state: Arc::new(tokio::sync::Mutex::new(state)) }
    }

    /// Whether every pod may use an image of the store: no pull secrets need to be read then.
    pub(crate) async fn is_accessible_to_all(&self, image: &Reference, found: &Image) -> bool {
        let state = self.state.lock().await;
        state.decide(&self.policy, image, found, &[]) == PullDecision::Use
    }

    /// Whether a pod with these credentials must pull an image that is in the store.
    pub(crate) async fn must_pull(&self, image: &Reference, found: &Image, credentials: &[Credentials]) -> bool {
        let mut state = self.state.lock().await;
        match state.decide(&self.policy, image, found, credentials) {
            PullDecision::Use => false,
            PullDecision::Pull => true,
            PullDecision::UseAndRecord(access) => {
                self.record_access(&mut state, image, &found.id, Some(access)).await;
                false
            }
        }
    }

    /// Records a pull before it starts, so that after a crash in the middle of it the image is not taken for a
    /// preloaded one. `before` is the id of the image that has the name now: one that has it still after the crash was
    /// there already.
    ///
    /// # Errors
    /// When the intent cannot be written.
    pub(crate) async fn record_intent(&self, image: &Reference, before: Option<&str>) -> io::Result<()> {
        let mut state = self.state.lock().await;
        let image = image.to_string();
        let before = Some(before.unwrap_or_default().to_owned());
        if !state.pulling.contains_key(&image) {
            let (kind, api_version) = ("ImagePullIntent".into(), API_VERSION.into());
            let intent = PullIntent { kind, api_version, image: image.clone(), before: before.clone() };
            self.write("pulling", &image, serde_json::to_vec(&intent)?).await?;
        }
        state.pulling.entry(image).or_insert(Pulling { count: 0, before }).count += 1;
        Ok(())
    }

    /// The ids of those images of the store that are the node's: it has pulled them, and they have no other names.
    pub(super) async fn own(&self, stored: &[ImageSummary]) -> BTreeSet<String> {
        let state = self.state.lock().await;
        let is_own = |image: &&ImageSummary| state.records.get(&image.id).is_some_and(|record| record.is_own(image));
        stored.iter().filter(is_own).map(|image| image.id.clone()).collect()
    }

    /// Records a successful pull and the credentials that the registry accepted, if it wanted any.
    pub(crate) async fn record_pulled(&self, image: &Reference, id: &str, with: Option<&Credentials>) {
        let mut state = self.state.lock().await;
        if self.record(&mut state, image, id, Some(Access::from_pull(with)), true).await {
            self.end_intent(&mut state, &image.to_string()).await;
        }
    }

    /// Records a failed pull.
    pub(crate) async fn record_failed(&self, image: &Reference) {
        let mut state = self.state.lock().await;
        self.end_intent(&mut state, &image.to_string()).await;
    }

    /// Removes records of images that are no longer in the store, unless they were pulled after it was `listed`, and
    /// adds records of images whose pull an earlier process did not see end.
    pub(super) async fn prune_unknown(&self, stored: &[ImageSummary], listed: Timestamp) {
        let mut state = self.state.lock().await;
        let left = state.pulling.iter().filter(|(_, pulling)| pulling.count == 0);
        let left: Vec<(String, Pulling)> = left.map(|(name, pulling)| (name.clone(), pulling.clone())).collect();
        for (name, pulling) in left {
            let Some(image) = Reference::parse(&name) else { continue };
            let called = familiar(&name);
            let there = stored.iter().find(|s| s.tags.iter().chain(&s.digests).any(|known| *known == called));
            // Docker gives what it pulls a digest of the registry; what was loaded or built has none.
            let of_registry = |s: &ImageSummary| {
                s.digests.iter().filter_map(|d| Reference::parse(d)).any(|d| d.repository() == image.repository())
            };
            let over = match there {
                None => false,
                Some(there) if pulling.may_have_pulled(&there.id) && of_registry(there) => {
                    self.record_access(&mut state, &image, &there.id, None).await
                }
                Some(_) => true,
            };
            if over {
                self.end_intent(&mut state, &name).await;
            }
        }
        let gone = |record: &PulledRecord| {
            record.last_updated_time < listed && !stored.iter().any(|image| image.id == record.image_ref)
        };
        let gone: Vec<String> = state.records.values().filter(|r| gone(r)).map(|r| r.image_ref.clone()).collect();
        for id in gone {
            self.remove("pulled", &id).await;
            state.records.remove(&id);
        }
    }

    /// Adds access to the record of an image. Returns whether it is on disk.
    async fn record_access(&self, state: &mut State, image: &Reference, id: &str, access: Option<Access>) -> bool {
        self.record(state, image, id, access, false).await
    }

    /// The same; with `pulled` the image was pulled under this name.
    async fn record(
        &self,
        state: &mut State,
        image: &Reference,
        id: &str,
        access: Option<Access>,
        pulled: bool,
    ) -> bool {
        let known = state.records.get(id);
        let mut record = known.cloned().unwrap_or_else(|| PulledRecord {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: Timestamp::now(),
            image_ref: id.to_owned(),
            credential_mapping: BTreeMap::new(),
            pulled_as: BTreeSet::new(),
        });
        if let Some(access) = access {
            record.credential_mapping.entry(image.repository()).or_default().merge(access);
        }
        if pulled {
            record.pulled_as.insert(image.familiar());
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
            tracing::warn!(%image, %error, "failed to write image pull record; the image is pulled again after a restart");
        }
        state.unreadable.remove(&file_name(id));
        state.records.insert(id.to_owned(), record);
        written.is_ok()
    }

    async fn end_intent(&self, state: &mut State, image: &str) {
        match state.pulling.get_mut(image) {
            Some(pulling) if pulling.count > 1 => pulling.count -= 1,
            Some(_) => {
                self.remove("pulling", image).await;
                state.pulling.remove(image);
            }
            None => {}
        }
    }

    async fn write(&self, subdir: &str, name: &str, text: Vec<u8>) -> io::Result<()> {
        let dir = self.dir.join(subdir);
        let file = dir.join(file_name(name));
        // An image outlives a cut of the power, and what it was pulled with must.
        let writing = move || {
            atomic_file::make_dir(&dir, 0o700)?;
            atomic_file::write_durable(&file, &text, 0o600)
        };
        RECORDS.io(writing).await
    }

    async fn remove(&self, subdir: &str, name: &str) {
        let file = self.dir.join(subdir).join(file_name(name));
        let path = file.display().to_string();
        match RECORDS.io(move || disk::of(&file).remove(&file)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = path, %error, "failed to remove image pull record");
            }
            _ => {}
        }
    }
}

impl State {
    fn decide(
        &self,
        policy: &PullVerificationPolicy,
        image: &Reference,
        found: &Image,
        credentials: &[Credentials],
    ) -> PullDecision {
        let record = self.records.get(&found.id);
        // A private pull of an image does not restrict a preloaded copy under another name. A pod that names the image
        // by its id needs access under any of its names.
        let by_this_name = |record: &PulledRecord| {
            let known = &record.credential_mapping;
            !found.named || known.is_empty() || known.contains_key(&image.repository())
        };
        let pulled = record.is_some_and(by_this_name)
            || self.unknown.is_some()
            || self.unreadable_intents.contains(&file_name(&image.to_string()))
            || self.unreadable.contains(&file_name(&found.id))
            || self.pulling.get(&image.to_string()).is_some_and(|pulling| pulling.may_have_pulled(&found.id));
        decide(policy, image, pulled, record, credentials)
    }
}

/// The records of a directory, by file name; temporary files are left out. One that cannot be read has no text.
///
/// # Errors
/// When it is not known which there are.
fn read_files(dir: &Path) -> io::Result<Vec<(String, String)>> {
    let entries = match disk::entries(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let records = entries.iter().filter(|path| name(path).starts_with("sha256-"));
    Ok(records.map(|path| (name(path), atomic_file::read(path).ok().flatten().unwrap_or_default())).collect())
}

fn file_name(name: &str) -> String {
    format!("sha256-{}", sha256_hex(name.as_bytes()))
}

/// The SHA-256 digest in hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
