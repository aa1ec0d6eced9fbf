//! Pods connected by CNI plugins. What a plugin was told and what it answered is on disk before and after each call,
//! so that a pod can be disconnected after a crash at any point. Which list of plugins is taken is looked at whenever their
//! folders change. `config` is pure.

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
use config::List;

/// Upstream's limit on one call of a plugin.
const PATIENCE: Duration = Duration::from_secs(220);
const INTERFACE: &str = "eth0";
/// The folders are looked at this often even when nothing tells of a change.
const LOOK: Duration = Duration::from_secs(20);
/// And this often while one of them is not there.
const LOOK_FOR_FOLDERS: Duration = Duration::from_secs(1);

/// Where plugins and their configuration are.
#[derive(Debug, Clone)]
pub struct CniConfig {
    /// Configurations; the first by name is taken.
    pub conf_dir: PathBuf,
    /// Programs; the first folder that has one is taken.
    pub bin_dirs: Vec<PathBuf>,
    /// What plugins did is kept here, one file for each pod.
    pub state_dir: PathBuf,
}

impl CniConfig {
    /// The configuration that is first by name, if it can be read and its plugins are all there. No other one takes its
    /// place: it may be half written, and pods must not be connected to another network meanwhile.
    fn configured(&self) -> Result<List, NetworkError> {
        let dir = &self.conf_dir;
        let attempt = || format!("the network of pods is not configured in {}", dir.display());
        let entries = fs::read_dir(dir).map_err(|e| NetworkError::new(attempt(), e))?;
        let known =
            |path: &PathBuf| path.extension().and_then(|e| e.to_str()).is_some_and(|e| config::ENDINGS.contains(&e));
        let first = entries.flatten().map(|e| e.path()).filter(known).min();
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
            // The first words are upstream's, by which people know what is meant.
            Err(error) => Readiness::not_ready(&format!("cni config uninitialized: {error}")),
        }
    }

    /// Waits for a change of the folders.
    async fn changed(&self, watches: &[Watch]) {
        // A folder that is not there yet cannot be watched, and one that was replaced stays silent.
        let complete = watches.len() == 1 + self.bin_dirs.len();
        let latest = tokio::time::sleep(if complete { LOOK } else { LOOK_FOR_FOLDERS });
        let any = futures::future::select_all(watches.iter().map(|watch| Box::pin(watch.changed())));
        tokio::select! {
            () = latest => {}
            _ = any, if !watches.is_empty() => {}
        }
    }

    fn with_programs(&self, list: List) -> Result<List, String> {
        let mut names = list.plugins.iter().filter_map(config::type_of);
        match names.find(|name| self.program(name).is_none()) {
            Some(name) => Err(format!("the plugin {name:?} is not in {}", self.folders().join(" or "))),
            None => Ok(list),
        }
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        self.bin_dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
    }

    fn folders(&self) -> Vec<String> {
        self.bin_dirs.iter().map(|dir| dir.display().to_string()).collect()
    }
}

/// What was done for a pod.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Done {
    pod_uid: String,
    sandbox: String,
    arguments: String,
    list: List,
    capabilities: Map<String, Value>,
    /// Nothing until the last plugin has answered.
    result: Option<Value>,
}

/// What is known of a pod, and whose turn it is: plugins are called for a pod by one at a time.
#[derive(Debug)]
struct Known {
    done: Done,
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
pub(super) struct Cni {
    config: CniConfig,
    known: Mutex<BTreeMap<String, Known>>,
}

impl Cni {
    pub(super) fn open(config: CniConfig) -> Result<Self, NetworkError> {
        let dir = &config.state_dir;
        let failed =
            |e: io::Error| NetworkError::new(format!("the state of plugins in {} could not be read", dir.display()), e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut known = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|e| e == "json")
                && let Ok(one) = serde_json::from_slice::<Done>(&fs::read(&path).map_err(failed)?)
            {
                known.insert(one.pod_uid.clone(), Known { done: one, turn: Arc::default() });
            }
        }
        Ok(Self { config, known: Mutex::new(known) })
    }

    /// Tells whether pods can be connected, whenever that may have changed, until `shutdown`.
    pub(super) async fn follow(&self, tell: impl Fn(Readiness), shutdown: CancellationToken) {
        loop {
            // Before the look, so that no change falls between.
            let folders = [&self.config.conf_dir].into_iter().chain(&self.config.bin_dirs);
            let watches: Vec<Watch> = folders.filter_map(|dir| Watch::new(dir, Watch::CONTENTS).ok()).collect();
            tell(self.config.readiness());
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.config.changed(&watches) => {}
            }
        }
    }

    pub(super) fn pods(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    pub(super) fn addresses_of(&self, pod_uid: &str) -> Vec<IpAddr> {
        self.lock().get(pod_uid).and_then(|k| k.done.result.as_ref()).map(config::addresses).unwrap_or_default()
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        match self.done(&request.pod_uid) {
            Some(done) if done.sandbox == request.sandbox && done.result.is_some() => {
                return Ok(self.addresses_of(&request.pod_uid));
            }
            // Another sandbox's, or one that was begun and not ended.
            Some(_) => self.detach(&request.pod_uid).await?,
            None => {}
        }
        let list = self.config.configured()?;
        let mut done = Done {
            pod_uid: request.pod_uid.clone(),
            sandbox: request.sandbox.clone(),
            arguments: config::arguments(&request),
            capabilities: config::capabilities(&request),
            list,
            result: None,
        };
        self.keep(&done)?;
        links::loopback(request.pid).await?;
        let namespace = format!("/proc/{}/ns/net", request.pid);
        let mut previous = None;
        for plugin in &done.list.plugins {
            let told = config::input(&done.list, plugin, &done.capabilities, previous.as_ref());
            let answer = match self.call("ADD", plugin, &told, &done, &namespace).await {
                Ok(answer) => answer,
                Err(error) => {
                    // What the plugins before it did is undone; what cannot be is tried again with the next sandbox.
                    if let Err(undo) = self.detach(&request.pod_uid).await {
                        tracing::warn!(pod = request.pod_uid, %undo, "a network that came half-way could not be undone");
                    }
                    return Err(error);
                }
            };
            previous = Some(serde_json::from_slice(&answer).map_err(|e| {
                NetworkError::new(
                    format!("the answer of the network plugin {:?} cannot be read", config::type_of(plugin)),
                    e,
                )
            })?);
        }
        done.result = previous;
        self.keep(&done)?;
        let addresses = self.addresses_of(&request.pod_uid);
        if addresses.is_empty() {
            return Err(NetworkError::new(
                "the network plugins gave the pod no address",
                format!("list {:?}", done.list.name),
            ));
        }
        Ok(addresses)
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let Some(turn) = self.lock().get(pod_uid).map(|k| k.turn.clone()) else { return Ok(()) };
        // Who comes while another undoes it waits until that is done: a pod's network is gone when this returns.
        let _turn = turn.lock().await;
        let Some(done) = self.done(pod_uid) else { return Ok(()) };
        self.undo(pod_uid, &done).await?;
        self.lock().remove(pod_uid);
        Ok(())
    }

    async fn undo(&self, pod_uid: &str, done: &Done) -> Result<(), NetworkError> {
        // The namespace has gone with its sandbox, or goes: plugins must do without it.
        for plugin in done.list.plugins.iter().rev() {
            let told = config::input(&done.list, plugin, &done.capabilities, done.result.as_ref());
            self.call("DEL", plugin, &told, done, "").await?;
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
        told: &Value,
        done: &Done,
        namespace: &str,
    ) -> Result<Vec<u8>, NetworkError> {
        let name = config::type_of(plugin).unwrap_or("");
        let failed = |why: String| NetworkError::new(format!("the network plugin {name:?} failed at {command}"), why);
        let folders = self.config.folders();
        let program =
            self.config.program(name).ok_or_else(|| failed(format!("it is not in {}", folders.join(" or "))))?;
        let mut process = tokio::process::Command::new(program);
        process
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &done.sandbox)
            .env("CNI_NETNS", namespace)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_ARGS", &done.arguments)
            .env("CNI_PATH", folders.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let run = async {
            let mut child = process.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(told.to_string().as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(PATIENCE, run).await;
        let output = output
            .map_err(|_| failed(format!("no answer within {} s", PATIENCE.as_secs())))?
            .map_err(|e| failed(e.to_string()))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said =
            config::error(&output.stdout).unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned());
        Err(failed(said))
    }

    fn file(&self, pod_uid: &str) -> PathBuf {
        self.config.state_dir.join(format!("{pod_uid}.json"))
    }

    fn keep(&self, done: &Done) -> Result<(), NetworkError> {
        let path = self.file(&done.pod_uid);
        let written =
            serde_json::to_vec(done).map_err(io::Error::from).and_then(|text| atomic_file::write(&path, &text, 0o600));
        written.map_err(|e| NetworkError::new(format!("{} could not be written", path.display()), e))?;
        let mut known = self.lock();
        let turn = known.get(&done.pod_uid).map(|k| k.turn.clone()).unwrap_or_default();
        known.insert(done.pod_uid.clone(), Known { done: done.clone(), turn });
        Ok(())
    }

    fn done(&self, pod_uid: &str) -> Option<Done> {
        self.lock().get(pod_uid).map(|k| k.done.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn a_change_of_the_folders_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (conf, bin) = (dir.path().join("net.d"), dir.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("bridge"), "").unwrap();
        let config = CniConfig { conf_dir: conf.clone(), bin_dirs: vec![bin], state_dir: dir.path().join("state") };
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (cni, stop) = (Cni::open(config).unwrap(), CancellationToken::new());
        let following = tokio::spawn({
            let stop = stop.clone();
            async move { cni.follow(|readiness| tell.send(readiness).unwrap(), stop).await }
        });
        let mut next = async |ready: bool| {
            let until = async { while (told.recv().await.unwrap() == Readiness::Ready) != ready {} };
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
