//! Connects pods by CNI plugins. Each plugin's input and result are written to disk before and after the call, so that
//! a pod can be disconnected after a crash at any point. The configuration is read again whenever its directories
//! change. `config` is pure.

mod config;

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, inotify::Watch};

use super::{Attach, NetworkError, Readiness, links};
use config::ConfList;

/// Timeout of one call of a plugin; upstream's.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(220);
const INTERFACE: &str = "eth0";
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
        read.and_then(|list| self.with_programs(list))
            .map_err(|error| NetworkError::new(attempt(), format!("{}: {error}", file.display())))
    }

    /// Whether pods can be connected.
    fn readiness(&self) -> Readiness {
        match self.configured() {
            Ok(_) => Readiness::Ready,
            // Upstream's text, which people search for.
            Err(error) => Readiness::not_ready(&format!("cni config uninitialized: {error}")),
        }
    }

    /// Waits for a change of the directories.
    async fn changed(&self, watches: &[Watch]) {
        // A missing directory cannot be watched, and a replaced one sends no events.
        let complete = watches.len() == 1 + self.bin_dirs.len();
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

/// The attachment of a pod: what its plugins were called with.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Attachment {
    pod_uid: String,
    sandbox: String,
    arguments: String,
    list: ConfList,
    capabilities: Map<String, Value>,
    /// The result; `None` until the last plugin has returned.
    result: Option<Value>,
}

/// A pod's attachment, and the lock under which its plugins are called.
#[derive(Debug)]
struct Entry {
    attachment: Attachment,
    lock: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
pub(super) struct Cni {
    config: CniConfig,
    entries: Mutex<BTreeMap<String, Entry>>,
}

impl Cni {
    pub(super) fn open(config: CniConfig) -> Result<Self, NetworkError> {
        let dir = &config.state_dir;
        let failed =
            |e: io::Error| NetworkError::new(format!("the state of plugins in {} could not be read", dir.display()), e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut entries = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|e| e == "json")
                && let Ok(one) = serde_json::from_slice::<Attachment>(&fs::read(&path).map_err(failed)?)
            {
                entries.insert(one.pod_uid.clone(), Entry { attachment: one, lock: Arc::default() });
            }
        }
        Ok(Self { config, entries: Mutex::new(entries) })
    }

    /// Publishes the readiness of the network whenever it may have changed, until `shutdown`.
    pub(super) async fn watch(&self, publish: impl Fn(Readiness), shutdown: CancellationToken) {
        loop {
            // Watched before reading, so that no change is missed.
            let dirs = [&self.config.conf_dir].into_iter().chain(&self.config.bin_dirs);
            let watches: Vec<Watch> = dirs.filter_map(|dir| Watch::new(dir, Watch::CONTENTS).ok()).collect();
            publish(self.config.readiness());
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.config.changed(&watches) => {}
            }
        }
    }

    pub(super) fn pods(&self) -> Vec<String> {
        self.entries().keys().cloned().collect()
    }

    pub(super) fn addresses_of(&self, pod_uid: &str) -> Vec<IpAddr> {
        self.entries()
            .get(pod_uid)
            .and_then(|k| k.attachment.result.as_ref())
            .map(config::addresses)
            .unwrap_or_default()
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        match self.attachment(&request.pod_uid) {
            Some(attachment) if attachment.sandbox == request.sandbox && attachment.result.is_some() => {
                return Ok(self.addresses_of(&request.pod_uid));
            }
            // An attachment of another sandbox, or an incomplete one.
            Some(_) => self.detach(&request.pod_uid).await?,
            None => {}
        }
        let list = self.config.configured()?;
        let mut attachment = Attachment {
            pod_uid: request.pod_uid.clone(),
            sandbox: request.sandbox.clone(),
            arguments: config::arguments(&request),
            capabilities: config::capabilities(&request),
            list,
            result: None,
        };
        self.save(&attachment)?;
        links::set_loopback_up(request.pid).await?;
        let namespace = format!("/proc/{}/ns/net", request.pid);
        let mut previous = None;
        for plugin in &attachment.list.plugins {
            let input = config::input(&attachment.list, plugin, &attachment.capabilities, previous.as_ref());
            let answer = match self.call("ADD", plugin, &input, &attachment, &namespace).await {
                Ok(answer) => answer,
                Err(error) => {
                    // Undo the plugins before it; what fails is retried with the next sandbox.
                    if let Err(undo) = self.detach(&request.pod_uid).await {
                        tracing::warn!(pod = request.pod_uid, %undo, "failed to undo incomplete network attachment; retrying with the next sandbox");
                    }
                    return Err(error);
                }
            };
            previous = Some(serde_json::from_slice(&answer).map_err(|e| {
                NetworkError::new(
                    format!("the result of the network plugin {:?} cannot be parsed", config::type_of(plugin)),
                    e,
                )
            })?);
        }
        attachment.result = previous;
        self.save(&attachment)?;
        let addresses = self.addresses_of(&request.pod_uid);
        if addresses.is_empty() {
            return Err(NetworkError::new(
                "the network plugins gave the pod no address",
                format!("list {:?}", attachment.list.name),
            ));
        }
        Ok(addresses)
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let Some(lock) = self.entries().get(pod_uid).map(|k| k.lock.clone()) else { return Ok(()) };
        // Concurrent callers wait here: the pod's network is removed when this returns.
        let _guard = lock.lock().await;
        let Some(attachment) = self.attachment(pod_uid) else { return Ok(()) };
        self.undo(pod_uid, &attachment).await?;
        self.entries().remove(pod_uid);
        Ok(())
    }

    async fn undo(&self, pod_uid: &str, attachment: &Attachment) -> Result<(), NetworkError> {
        // The namespace may already be removed with its sandbox: DEL must work without it.
        for plugin in attachment.list.plugins.iter().rev() {
            let input = config::input(&attachment.list, plugin, &attachment.capabilities, attachment.result.as_ref());
            self.call("DEL", plugin, &input, attachment, "").await?;
        }
        let path = self.file(pod_uid);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(NetworkError::new(format!("{} could not be removed", path.display()), e))
            }
            _ => Ok(()),
        }
    }

    async fn call(
        &self,
        command: &str,
        plugin: &Map<String, Value>,
        input: &Value,
        attachment: &Attachment,
        namespace: &str,
    ) -> Result<Vec<u8>, NetworkError> {
        let name = config::type_of(plugin).unwrap_or("");
        let failed = |why: String| NetworkError::new(format!("the network plugin {name:?} failed at {command}"), why);
        let bin_dir_names = self.config.bin_dir_names();
        let program =
            self.config.program(name).ok_or_else(|| failed(format!("it is not in {}", bin_dir_names.join(" or "))))?;
        let mut process = tokio::process::Command::new(program);
        process
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &attachment.sandbox)
            .env("CNI_NETNS", namespace)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_ARGS", &attachment.arguments)
            .env("CNI_PATH", bin_dir_names.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let run = async {
            let mut child = process.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.to_string().as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(PLUGIN_TIMEOUT, run).await;
        let output = output
            .map_err(|_| failed(format!("no answer within {} s", PLUGIN_TIMEOUT.as_secs())))?
            .map_err(|e| failed(e.to_string()))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let message =
            config::error(&output.stdout).unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned());
        Err(failed(message))
    }

    fn file(&self, pod_uid: &str) -> PathBuf {
        self.config.state_dir.join(format!("{pod_uid}.json"))
    }

    fn save(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        let path = self.file(&attachment.pod_uid);
        let written = serde_json::to_vec(attachment)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::write(&path, &text, 0o600));
        written.map_err(|e| NetworkError::new(format!("{} could not be written", path.display()), e))?;
        let mut entries = self.entries();
        let lock = entries.get(&attachment.pod_uid).map(|k| k.lock.clone()).unwrap_or_default();
        entries.insert(attachment.pod_uid.clone(), Entry { attachment: attachment.clone(), lock });
        Ok(())
    }

    fn attachment(&self, pod_uid: &str) -> Option<Attachment> {
        self.entries().get(pod_uid).map(|k| k.attachment.clone())
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_configured_once_its_plugins_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let (conf, bin) = (dir.path().join("net.d"), dir.path().join("bin"));
        let config = CniConfig { conf_dir: conf.clone(), bin_dirs: vec![bin.clone()], state_dir: "/nowhere".into() };
        let why = || config.configured().unwrap_err().to_string();
        assert!(why().contains("No such file"), "{}", why());
        for folder in [&conf, &bin] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(conf.join("README"), "not a configuration").unwrap();
        assert!(why().ends_with("there is no file that ends in .conf, .conflist or .json"), "{}", why());
        fs::write(
            conf.join("10-first.conflist"),
            r#"{"name":"first","plugins":[{"type":"bridge"},{"type":"portmap"}]}"#,
        )
        .unwrap();
        fs::write(bin.join("bridge"), "").unwrap();
        assert!(why().contains(r#"10-first.conflist: the plugin "portmap" is not in"#), "{}", why());
        fs::write(conf.join("20-second.conf"), r#"{"name":"second","type":"bridge"}"#).unwrap();
        assert!(why().contains("10-first.conflist"), "no other takes the place of the first: {}", why());
        fs::write(bin.join("portmap"), "").unwrap();
        assert_eq!(config.configured().unwrap().name, "first");
        // Written in place.
        fs::write(conf.join("10-first.conflist"), r#"{"name":"first","plugins":[{"type":"bri"#).unwrap();
        assert!(why().contains("10-first.conflist: EOF"), "{}", why());
        fs::remove_file(conf.join("10-first.conflist")).unwrap();
        assert_eq!(config.configured().unwrap().name, "second");
    }

    #[tokio::test]
    async fn changes_of_the_directories_are_published() {
        let dir = tempfile::tempdir().unwrap();
        let (conf, bin) = (dir.path().join("net.d"), dir.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("bridge"), "").unwrap();
        let config = CniConfig { conf_dir: conf.clone(), bin_dirs: vec![bin], state_dir: dir.path().join("state") };
        let (publish, mut published) = tokio::sync::mpsc::unbounded_channel();
        let (cni, stop) = (Cni::open(config).unwrap(), CancellationToken::new());
        let following = tokio::spawn({
            let stop = stop.clone();
            async move { cni.watch(|readiness| publish.send(readiness).unwrap(), stop).await }
        });
        let mut next = async |ready: bool| {
            let until = async { while (published.recv().await.unwrap() == Readiness::Ready) != ready {} };
            tokio::time::timeout(Duration::from_secs(15), until).await.expect("nothing was told");
        };
        next(false).await;
        fs::create_dir(&conf).unwrap();
        fs::write(conf.join("10-a.conf"), r#"{"name":"a","type":"bridge"}"#).unwrap();
        next(true).await;
        fs::write(conf.join("10-a.conf"), "{").unwrap();
        next(false).await;
        fs::write(conf.join("10-a.conf"), r#"{"name":"a","type":"bridge"}"#).unwrap();
        next(true).await;
        fs::remove_file(conf.join("10-a.conf")).unwrap();
        next(false).await;
        stop.cancel();
        following.await.unwrap();
    }
}
