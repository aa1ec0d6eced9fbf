//! Connects pods by CNI plugins, as libcni calls them. An attachment is written to disk before plugins are called and
//! after, so that a pod can be disconnected after a crash at any point; and it holds the pod's network namespace until
//! they have disconnected it, whatever becomes of the sandbox: what a plugin has made in there, or for it, only it knows.
//! The configuration is read again whenever its directories change. `config` is pure.

mod attachment;
mod config;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod namespace;
mod plugin;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;
use windlass_kit::inotify::Watch;

use super::{Attach, NetworkError, Readiness, links};
use crate::keyed_lock::KeyedLock;
use attachment::{Attachment, Opened, State, Store};
use config::ConfList;
use plugin::Target;

const INTERFACE: &str = "eth0";
/// How long a pod that runs waits for plugins that check its network.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// The directories are read this often even without inotify events.
const POLL_INTERVAL: Duration = Duration::from_secs(20);
/// The same while one of them does not exist.
const MISSING_DIR_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Where plugins and their configuration are.
#[derive(Debug, Clone)]
pub struct CniConfig {
    /// Configuration files; the first by name is used.
    pub conf_dir: PathBuf,
    /// Plugin binaries; the first directory that has one wins.
    pub bin_dirs: Vec<PathBuf>,
    /// The attachments, one file per pod.
    pub state_dir: PathBuf,
    /// Where namespaces of pods are held.
    pub netns_dir: PathBuf,
}

impl CniConfig {
    /// The first configuration by name, if it is valid and its plugins exist. No other one is used instead: the first
    /// may be half written, and pods must not be connected to another network meanwhile.
    fn configured(&self) -> Result<ConfList, NetworkError> {
        let dir = &self.conf_dir;
        let attempt = || format!("the network of pods is not configured in {}", dir.display());
        let entries = fs::read_dir(dir).map_err(|e| NetworkError::new(attempt(), e))?;
        let is_config =
            |path: &PathBuf| path.extension().and_then(|e| e.to_str()).is_some_and(|e| config::EXTENSIONS.contains(&e));
        let first = entries.flatten().map(|e| e.path()).filter(is_config).min();
        let file = first
            .ok_or_else(|| NetworkError::new(attempt(), "there is no file that ends in .conf, .conflist or .json"))?;
        let read = fs::read_to_string(&file).map_err(|e| e.to_string()).and_then(|text| config::read(&text));
        read.and_then(|list| {
            let more = if list.more_in_directory { self.plugin_files(&list.name)? } else { Vec::new() };
            list.complete(&more)
        })
        .and_then(|list| self.with_programs(list))
        .map_err(|error| NetworkError::new(attempt(), format!("{}: {error}", file.display())))
    }

    /// The files of single plugins of a list, by name, with their texts: those of a directory that has its name.
    fn plugin_files(&self, list: &str) -> Result<Vec<(String, String)>, String> {
        let dir = self.conf_dir.join(list);
        let failed = |path: &Path, e: &io::Error| format!("{} could not be read: {e}", path.display());
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&dir, &error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| failed(&dir, &e))?.path();
            if path.extension().is_some_and(|end| end == "conf") && !path.is_dir() {
                let text = fs::read_to_string(&path).map_err(|e| failed(&path, &e))?;
                files.push((path.display().to_string(), text));
            }
        }
        files.sort();
        Ok(files)
    }

    /// All directories whose changes may change the network: with them those of lists' single plugins.
    fn dirs(&self) -> Vec<PathBuf> {
        let below = fs::read_dir(&self.conf_dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let below = below.filter(|path| path.is_dir());
        [self.conf_dir.clone()].into_iter().chain(self.bin_dirs.iter().cloned()).chain(below).collect()
    }

    /// Asks the plugins whether they can connect pods, if they can be asked.
    async fn status(&self, list: &ConfList) -> Result<(), NetworkError> {
        if list.at_least(config::STATUS_AND_GC) {
            for plugin in &list.plugins {
                let input = config::input(list, plugin, &Map::new(), None);
                self.call("STATUS", plugin, &input, Target::default()).await?;
            }
        }
        Ok(())
    }

    /// Waits for a change of the directories.
    async fn changed(&self, watches: &[Watch], complete: bool) {
        // A missing directory cannot be watched, and a replaced one sends no events.
        let latest = tokio::time::sleep(if complete { POLL_INTERVAL } else { MISSING_DIR_POLL_INTERVAL });
        let any = futures::future::select_all(watches.iter().map(|watch| Box::pin(watch.changed())));
        tokio::select! {
            () = latest => {}
            _ = any, if !watches.is_empty() => {}
        }
    }

    fn with_programs(&self, list: ConfList) -> Result<ConfList, String> {
        let mut names = list.plugins.iter().filter_map(config::type_of);
        match names.find(|name| self.program(name).is_none()) {
            Some(name) => Err(format!("the plugin {name:?} is not in {}", self.bin_dir_names().join(" or "))),
            None => Ok(list),
        }
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        self.bin_dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
    }

    fn bin_dir_names(&self) -> Vec<String> {
        self.bin_dirs.iter().map(|dir| dir.display().to_string()).collect()
    }
}

/// The attachments of this node's pods.
#[derive(Debug)]
pub(super) struct Cni {
    config: CniConfig,
    store: Store,
    attachments: Mutex<BTreeMap<String, Attachment>>,
    /// By pod: a pod's plugin calls are serialized.
    turns: KeyedLock<String>,
    /// Held for writing while garbage is collected, for reading while a pod is connected or disconnected: what is being made
    /// for a pod that is in no list yet would be garbage.
    collecting: RwLock<()>,
    /// Garbage could not be collected, since plugins were not ready: it is when they are.
    garbage_is_left: AtomicBool,
    /// What plugins have answered to VERSION.
    versions: Mutex<BTreeMap<ProgramFile, Vec<String>>>,
    /// Pods whose attachment was looked at since the start of this process.
    checked: Mutex<BTreeSet<String>>,
}

/// A version of a plugin's file: its path and modification time in nanoseconds.
type ProgramFile = (PathBuf, i128);

impl Cni {
    pub(super) fn open(config: CniConfig) -> Result<Self, NetworkError> {
        let dir = &config.state_dir;
        let Opened { store, attachments, unreadable } = Store::open(dir).map_err(|e| {
            NetworkError::new(format!("the state of plugins in {} could not be read", dir.display()), e)
        })?;
        for (file, error) in unreadable {
            tracing::error!(
                file = %file.display(), error,
                "failed to read the network attachment of a pod; its plugins are not called when it is gone: remove its                  address and the file by hand"
            );
        }
        let attachments = attachments.into_iter().map(|one| (one.pod_uid.clone(), one)).collect();
        Ok(Self {
            config,
            store,
            attachments: Mutex::new(attachments),
            turns: KeyedLock::default(),
            collecting: RwLock::default(),
            garbage_is_left: AtomicBool::default(),
            versions: Mutex::default(),
            checked: Mutex::default(),
        })
    }

    /// Whether pods can be connected.
    async fn readiness(&self) -> Readiness {
        match self.config.configured() {
            Ok(list) => match self.supports(&list).await.and(self.config.status(&list).await) {
                Ok(()) => Readiness::Ready,
                Err(error) => Readiness::not_ready(&error.to_string()),
            },
            // Upstream's text, which people search for.
            Err(error) => Readiness::not_ready(&format!("cni config uninitialized: {error}")),
        }
    }

    /// Whether all plugins support the version of their list. A plugin that does not report its versions is logged and
    /// used: not all container runtimes ask.
    async fn supports(&self, list: &ConfList) -> Result<(), NetworkError> {
        for plugin in &list.plugins {
            let name = config::type_of(plugin).unwrap_or_default();
            let Some(file) = self.config.program(name).and_then(program_file) else { continue };
            let known = self.versions.lock().get(&file).cloned();
            let versions = match known {
                Some(versions) => versions,
                None => {
                    let answer = self.config.versions(plugin).await;
                    let versions = answer.unwrap_or_else(|error| {
                        tracing::warn!(plugin = name, %error, "failed to ask a network plugin for its versions; it is used all the same");
                        Vec::new()
                    });
                    self.versions.lock().insert(file, versions.clone());
                    versions
                }
            };
            if !versions.is_empty() && !versions.contains(&list.version) {
                let why = format!("plugin {name} does not support config version {:?}", list.version);
                let attempt = format!("the network {:?} cannot be used", list.name);
                return Err(NetworkError::new(attempt, format!("{why}, but {}", versions.join(", "))));
            }
        }
        Ok(())
    }

    /// Publishes the readiness of the network whenever it may have changed, until `shutdown`, and makes up for garbage that
    /// could not be collected when it comes.
    pub(super) async fn watch(&self, publish: impl Fn(Readiness), shutdown: CancellationToken) {
        let mut was_ready = false;
        loop {
            // Watched before reading, so that no change is missed.
            let dirs = self.config.dirs();
            let watches: Vec<Watch> = dirs.iter().filter_map(|dir| Watch::new(dir, Watch::CONTENTS).ok()).collect();
            let readiness = tokio::select! {
                () = shutdown.cancelled() => return,
                readiness = self.readiness() => readiness,
            };
            let is_ready = readiness == Readiness::Ready;
            publish(readiness);
            if is_ready && !was_ready && self.garbage_is_left.load(Ordering::Relaxed) {
                let collected = tokio::select! {
                    () = shutdown.cancelled() => return,
                    collected = self.collect_garbage() => collected,
                };
                if let Err(error) = collected {
                    tracing::warn!(%error, "failed to have network plugins free what belongs to no pod; retrying when they are ready again");
                }
            }
            was_ready = is_ready;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.config.changed(&watches, watches.len() == dirs.len()) => {}
            }
        }
    }

    pub(super) fn pods(&self) -> Vec<String> {
        self.attachments().keys().cloned().collect()
    }

    pub(super) fn addresses_of(&self, pod_uid: &str) -> Vec<IpAddr> {
        match self.attachment(pod_uid).as_ref().map(Attachment::state) {
            Some(State::Added(result)) => config::addresses(result),
            _ => Vec::new(),
        }
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        let uid = &request.pod_uid;
        let _connecting = self.collecting.read().await;
        let _turn = self.turns.lock(uid.clone()).await;
        if let Some(attachment) = self.attachment(uid) {
            if let State::Added(result) = attachment.state()
                && attachment.sandbox == request.sandbox
            {
                if !namespace::is_held(&self.namespace_file(uid)) {
                    // Made by a version that did not hold it.
                    self.hold(&request)?;
                }
                let addresses = config::addresses(result);
                // Once per process, for an attachment found on disk. A failure is logged and not repaired, as in other
                // runtimes: a failed CHECK is no proof that the pod cannot be reached.
                if self.checked.lock().insert(uid.clone()) {
                    let checked = tokio::time::timeout(CHECK_TIMEOUT, self.check(&attachment)).await;
                    let late = |_| {
                        let why = format!("no answer within {} s", CHECK_TIMEOUT.as_secs());
                        Err(NetworkError::new("the network plugins could not be asked to check a pod", why))
                    };
                    if let Err(error) = checked.unwrap_or_else(late) {
                        tracing::warn!(pod = uid, %error, "the network of a pod may not be as its plugins have left it; delete the pod if it cannot be reached");
                    }
                }
                return Ok(addresses);
            }
            // An attachment of another sandbox, or one that did not come to its end.
            self.delete(attachment).await?;
        }
        let attachment = Attachment {
            pod_uid: uid.clone(),
            sandbox: request.sandbox.clone(),
            arguments: config::arguments(&request),
            capabilities: config::capabilities(&request),
            list: self.config.configured()?,
            result: None,
            deleting: false,
        };
        self.save(attachment.clone())?;
        let added = async {
            self.hold(&request)?;
            links::set_loopback_up(&request.namespace).await?;
            self.add(&attachment).await
        };
        match added.await {
            Ok((result, addresses)) => {
                self.save(Attachment { result: Some(result), ..attachment })?;
                self.checked.lock().insert(request.pod_uid);
                Ok(addresses)
            }
            Err(error) => {
                // What fails here is done again before the next sandbox is attached.
                if let Err(undo) = self.delete(attachment).await {
                    tracing::warn!(pod = request.pod_uid, %undo, "failed to undo incomplete network attachment; retrying with the next sandbox");
                }
                Err(error)
            }
        }
    }

    /// Calls all plugins; gives the last one's result and its addresses.
    async fn add(&self, attachment: &Attachment) -> Result<(Value, Vec<IpAddr>), NetworkError> {
        let mut result = Value::Null;
        for plugin in &attachment.list.plugins {
            let previous = Some(&result).filter(|r| !r.is_null());
            let input = config::input(&attachment.list, plugin, &attachment.capabilities, previous);
            let answer = self.call("ADD", plugin, &input, Some(attachment)).await?;
            result = serde_json::from_slice(&answer).map_err(|e| {
                let name = config::type_of(plugin).unwrap_or_default();
                NetworkError::new(format!("the result of the network plugin {name:?} cannot be parsed"), e)
            })?;
        }
        let addresses = config::addresses(&result);
        if addresses.is_empty() {
            let list = format!("list {:?}", attachment.list.name);
            return Err(NetworkError::new("the network plugins gave the pod no address", list));
        }
        Ok((result, addresses))
    }

    /// Asks the plugins whether what they have made is still there, if they can be asked.
    async fn check(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        let list = &attachment.list;
        if list.disable_check || !list.at_least(config::CHECK) {
            return Ok(());
        }
        for plugin in &list.plugins {
            let input = config::input(list, plugin, &attachment.capabilities, attachment.result.as_ref());
            self.call("CHECK", plugin, &input, Some(attachment)).await?;
        }
        Ok(())
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let _disconnecting = self.collecting.read().await;
        // Concurrent callers wait here: the pod's network is removed when this returns.
        let _turn = self.turns.lock(pod_uid.to_owned()).await;
        match self.attachment(pod_uid) {
            Some(attachment) => self.delete(attachment).await,
            None => Ok(()),
        }
    }

    /// Disconnects a pod, whose turn it is. Its namespace is given up, and the attachment forgotten, when all plugins have
    /// succeeded.
    async fn delete(&self, attachment: Attachment) -> Result<(), NetworkError> {
        let attachment = Attachment { deleting: true, ..attachment };
        self.save(attachment.clone())?;
        let list = &attachment.list;
        let result = attachment.result.as_ref().filter(|_| list.at_least(config::DEL_WITH_RESULT));
        for plugin in list.plugins.iter().rev() {
            let input = config::input(list, plugin, &attachment.capabilities, result);
            self.call("DEL", plugin, &input, Some(&attachment)).await?;
        }
        let uid = &attachment.pod_uid;
        let file = self.namespace_file(uid);
        namespace::release(&file)
            .map_err(|e| NetworkError::new(format!("the namespace {} could not be given up", file.display()), e))?;
        self.store.remove(uid).map_err(|why| NetworkError::new("a network attachment could not be forgotten", why))?;
        self.attachments().remove(uid);
        self.checked.lock().remove(uid);
        Ok(())
    }

    /// Sends GC with the valid attachments to the plugins of the configured list, as libcni does, so that they free
    /// leaked resources. Without a configuration, or when a plugin fails, it is repeated when the network becomes
    /// ready.
    pub(super) async fn collect_garbage(&self) -> Result<(), NetworkError> {
        let Ok(list) = self.config.configured() else {
            // The reason is reported on the pods.
            self.garbage_is_left.store(true, Ordering::Relaxed);
            return Ok(());
        };
        if list.disable_gc || !list.at_least(config::STATUS_AND_GC) {
            self.garbage_is_left.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let _alone = self.collecting.write().await;
        let valid: Vec<String> = self.attachments().values().map(|one| one.sandbox.clone()).collect();
        let mut first = Ok(());
        for plugin in &list.plugins {
            let input = config::garbage_input(&list, plugin, INTERFACE, &valid);
            let done = self.call("GC", plugin, &input, None).await.map(drop);
            first = first.and(done);
        }
        self.garbage_is_left.store(first.is_err(), Ordering::Relaxed);
        first
    }

    async fn call(
        &self,
        command: &str,
        plugin: &Map<String, Value>,
        input: &Value,
        attachment: Option<&Attachment>,
    ) -> Result<Vec<u8>, NetworkError> {
        // Empty only if the machine has been started again since: the namespace has gone with the old one.
        let namespace = attachment.map(|one| self.namespace_file(&one.pod_uid)).filter(|file| namespace::is_held(file));
        let namespace = namespace.unwrap_or_default();
        let target = attachment.map(|one| Target {
            sandbox: &one.sandbox,
            arguments: &one.arguments,
            namespace: &namespace,
            interface: INTERFACE,
        });
        self.config.call(command, plugin, input, target.unwrap_or_default()).await
    }

    fn namespace_file(&self, pod_uid: &str) -> PathBuf {
        self.config.netns_dir.join(format!("cni-{pod_uid}"))
    }

    fn hold(&self, request: &Attach) -> Result<(), NetworkError> {
        let file = self.namespace_file(&request.pod_uid);
        namespace::hold(&request.namespace, &file).map_err(|e| {
            NetworkError::new(format!("the pod's network namespace could not be held at {}", file.display()), e)
        })
    }

    fn save(&self, attachment: Attachment) -> Result<(), NetworkError> {
        let saved = self.store.save(&attachment);
        saved.map_err(|why| NetworkError::new("a network attachment could not be recorded", why))?;
        self.attachments().insert(attachment.pod_uid.clone(), attachment);
        Ok(())
    }

    fn attachment(&self, pod_uid: &str) -> Option<Attachment> {
        self.attachments().get(pod_uid).cloned()
    }

    fn attachments(&self) -> MutexGuard<'_, BTreeMap<String, Attachment>> {
        self.attachments.lock()
    }
}

/// A program that is replaced is another one.
fn program_file(path: PathBuf) -> Option<ProgramFile> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(&path).ok()?;
    Some((path, i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec())))
}

#[cfg(test)]
mod tests;
