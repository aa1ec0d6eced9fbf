//! Where Docker keeps images, writable layers and logs: read when Docker first answers, and again whenever it comes back,
//! for only its restart can change that.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{Docker, models::SystemInfo, query_parameters::ListContainersOptions};
use tokio::{net::UnixStream, sync::watch};
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::EngineDirs;
use windlass_kit::blocking::DISK;

use super::{
    Engine, EngineError, Health,
    docker_api::{INFO, LIST_WITH_SIZES},
};
use crate::known::Known;

/// A restart may be too short to be seen as an outage.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// After a failure, Docker is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Where the system's containerd listens and keeps its data, and its configuration, unless it was started with others.
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
const CONTAINERD_ROOT: &str = "/var/lib/containerd";
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// How the containerd that Docker uses was started.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Containerd {
    args: Vec<String>,
    /// The text of its configuration, if there is any.
    config: Option<String>,
}

impl Containerd {
    /// The one that listens at a socket; of one that cannot be looked at nothing is known.
    async fn at(address: &str) -> Known<Self> {
        let looked = async {
            let pid = listener(address).await?;
            DISK.io(move || Self::of_process(pid)).await
        };
        looked.await.map_err(|why| format!("containerd at {address} could not be looked at: {why}")).into()
    }

    /// How a process was started; of one that is no containerd nothing is taken.
    fn of_process(pid: i32) -> io::Result<Self> {
        let proc = format!("/proc/{pid}");
        let line = std::fs::read(format!("{proc}/cmdline"))?;
        if line.is_empty() {
            // It ends.
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("process {pid} has no command line")));
        }
        let args = Self::args_of(&String::from_utf8_lossy(&line));
        let file = Self::value_of(&args, &["--config", "-c"]).unwrap_or(CONTAINERD_CONFIG);
        // As it sees its files, if it is one.
        let at = match args.is_empty() {
            true => PathBuf::from(file),
            false => Path::new(&proc).join("root").join(file.trim_start_matches('/')),
        };
        let config = match std::fs::read_to_string(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", at.display())))?),
        };
        Ok(Self { args, config })
    }

    /// The arguments of a process, if it is a containerd.
    fn args_of(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
        let is_one = words.first().is_some_and(|program| Path::new(program).ends_with("containerd"));
        if is_one { words } else { Vec::new() }
    }

    /// The value of a flag, in either form, the last one that is given.
    fn value_of<'a>(args: &'a [String], names: &[&str]) -> Option<&'a str> {
        let mut values = args.iter().enumerate().filter_map(|(at, word)| match word.split_once('=') {
            Some((name, value)) if names.contains(&name) => Some(value),
            _ if names.contains(&word.as_str()) => args.get(at + 1).map(String::as_str),
            _ => None,
        });
        values.next_back()
    }

    /// Where it keeps its data: what its flag says, else its configuration.
    fn root(&self) -> PathBuf {
        let lines = self.config.iter().flat_map(|text| text.lines());
        let configured = lines.take_while(|line| !line.trim_start().starts_with('[')).filter_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "root").then(|| value.trim().trim_matches(['"', '\'']))
        });
        let root = Self::value_of(&self.args, &["--root"]).or_else(|| configured.last());
        root.filter(|root| root.starts_with('/')).map_or_else(|| CONTAINERD_ROOT.into(), PathBuf::from)
    }
}

/// The process that listens at a socket.
async fn listener(address: &str) -> io::Result<i32> {
    let stream = UnixStream::connect(address.trim_start_matches("unix://")).await?;
    // Zero is one that has no number here.
    let pid = stream.peer_cred()?.pid().filter(|pid| *pid > 0);
    pid.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the kernel does not tell which process listens there"))
}

/// Whether Docker keeps images and layers in containerd's store.
fn uses_containerd(info: &SystemInfo) -> bool {
    let status = info.driver_status.iter().flatten();
    status
        .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
        .any(|(key, value)| key == "driver-type" && value.starts_with("io.containerd.snapshotter."))
}

/// The socket of the containerd that Docker uses. Docker before 27 does not report it.
fn containerd_address(info: &SystemInfo) -> &str {
    let told = info.containerd.as_ref().and_then(|containerd| containerd.address.as_deref());
    told.filter(|address| !address.is_empty()).unwrap_or(CONTAINERD_SOCKET)
}

/// The directories from Docker's `GET /info`, with what is known of its containerd.
pub(super) fn dirs_of(info: &SystemInfo, containerd: &Known<Containerd>) -> EngineDirs {
    let Some(data_root) = info.docker_root_dir.as_deref().filter(|dir| !dir.is_empty()).map(PathBuf::from) else {
        return EngineDirs::default();
    };
    let image_root = match containerd_address(info) {
        _ if !uses_containerd(info) => Some(data_root.clone()),
        // A child of dockerd (`daemon/internal/libcontainerd/supervisor`).
        address if address.ends_with("docker/containerd/containerd.sock") => Some(data_root.join("containerd/daemon")),
        _ => match containerd {
            Known::Is(containerd) => Some(containerd.root()),
            Known::Unknown(_) => None,
        },
    };
    EngineDirs { data_root: Some(data_root), image_root }
}

/// Takes over what was found; whether that is something else. What is not known now may have been before.
fn learn(known: &mut EngineDirs, mut found: EngineDirs) -> bool {
    if found.data_root == known.data_root {
        found.image_root = found.image_root.or_else(|| known.image_root.clone());
    }
    let differs = *known != found;
    if differs {
        tracing::info!(data_root = ?found.data_root, image_root = ?found.image_root, "Docker keeps its data there");
        *known = found;
    }
    differs
}

/// Follows Docker's directories until `shutdown`.
pub(crate) async fn follow(
    engine: Engine,
    mut health: watch::Receiver<Health>,
    dirs: watch::Sender<EngineDirs>,
    shutdown: CancellationToken,
) {
    let following = async {
        // Why something is not known, as it was said.
        let mut untold = None;
        loop {
            if health.wait_for(|health| matches!(health, Health::Up { .. })).await.is_err() {
                // The end of the node's parts.
                return std::future::pending().await;
            }
            match engine.dirs().await {
                Ok((found, containerd)) => {
                    let is_whole = found.data_root.is_none() || found.image_root.is_some();
                    dirs.send_if_modified(|known| learn(known, found));
                    if let Known::Unknown(why) = containerd
                        && !is_whole
                    {
                        if untold.as_ref() != Some(&why) {
                            tracing::warn!(%why, "where Docker's images are is not known; their space is not watched until it is, which is tried again every 5 s");
                        }
                        untold = Some(why);
                        tokio::time::sleep(RETRY_INTERVAL).await;
                        continue;
                    }
                    untold = None;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read where Docker keeps its data; retrying");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            let gone = health.wait_for(|health| !matches!(health, Health::Up { .. }));
            let _ = tokio::time::timeout(REFRESH_INTERVAL, gone).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = following => {}
    }
}

impl Engine {
    /// Where Docker keeps images, writable layers and logs, and what is known of its containerd.
    async fn dirs(&self) -> Result<(EngineDirs, Known<Containerd>), EngineError> {
        let attempt = || "Docker could not be asked where it keeps its data".to_owned();
        let info = self.get(&INFO, attempt, async |docker: Docker| docker.info().await).await?;
        let containerd = match uses_containerd(&info) {
            true => Containerd::at(containerd_address(&info)).await,
            false => Known::Is(Containerd::default()),
        };
        Ok((dirs_of(&info, &containerd), containerd))
    }

    /// Bytes of the writable layers of the running containers, by id, as Docker counts them whatever its storage driver
    /// is. It walks over all of their files.
    pub(crate) async fn layer_bytes(&self) -> Result<BTreeMap<String, u64>, EngineError> {
        let options = ListContainersOptions { size: true, ..ListContainersOptions::default() };
        let attempt = || "the sizes of containers could not be read".to_owned();
        let list = async |docker: Docker| docker.list_containers(Some(options)).await;
        let all = self.get(&LIST_WITH_SIZES, attempt, list).await?;
        // Docker leaves the size of an empty layer out.
        let size = |c: bollard::models::ContainerSummary| Some((c.id?, u64::try_from(c.size_rw.unwrap_or(0)).ok()?));
        Ok(all.into_iter().filter_map(size).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fake, *};

    #[tokio::test]
    async fn directories_are_read_when_docker_first_answers_and_when_it_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let engine = fake::scripted(dir.path(), move |_| {
            let root = ["/first", "/second"][asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(1)];
            fake::json(200, &format!(r#"{{"DockerRootDir":"{root}","Driver":"overlay2"}}"#))
        });
        let (health_tx, health) = watch::channel(Health::Unknown);
        let (dirs_tx, mut dirs) = watch::channel(EngineDirs::default());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(follow(engine, health, dirs_tx, shutdown.clone()));
        let up = || Health::Up { version: "29.0.0".to_owned() };
        for root in ["/first", "/second"] {
            health_tx.send_replace(Health::Down { reason: "it starts".to_owned() });
            tokio::task::yield_now().await;
            health_tx.send_replace(up());
            let found = dirs.wait_for(|dirs| dirs.data_root.as_deref() == Some(Path::new(root)));
            tokio::time::timeout(Duration::from_secs(10), found).await.expect("the directories").unwrap();
        }
        shutdown.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn docker_counts_layers_of_any_driver() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake::scripted(dir.path(), |line| {
            assert!(line.contains("size=true"), "{line}");
            fake::json(200, r#"[{"Id":"a","SizeRw":104857600},{"Id":"b","SizeRootFs":9},{"Id":"c","SizeRw":-1}]"#)
        });
        // A layer without a file, and one whose size Docker does not know.
        let expected = [("a", 104_857_600), ("b", 0)].map(|(id, bytes)| (id.to_owned(), bytes));
        assert_eq!(engine.layer_bytes().await.unwrap(), BTreeMap::from(expected));
    }

    /// As the engines of these versions answer.
    #[test]
    fn images_are_where_the_store_is() {
        let overlay2 = r#"{"DockerRootDir":"/data/docker","Driver":"overlay2",
            "DriverStatus":[["Backing Filesystem","extfs"],["Supports d_type","true"]]}"#;
        let containerd = r#"{"DockerRootDir":"/data/docker","Driver":"overlayfs",
            "DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],
            "Containerd":{"Address":"/run/containerd/containerd.sock","Namespaces":{"Containers":"moby"}}}"#;
        let own = containerd.replace("/run/containerd/", "/var/run/docker/containerd/");
        let moved = "version = 3\nroot = '/big/containerd'\nstate = '/run/containerd'\n[plugins]\nroot = '/no'\n";
        let plain = "/usr/bin/containerd\0";
        let flags = "containerd\0--root=/flag/containerd\0--address\0/x\0";
        let other = "/usr/bin/python3\0--root=/no\0";
        for (info, line, config, image_root) in [
            (overlay2, "", None, "/data/docker"),
            (overlay2, flags, Some(moved), "/data/docker"),
            (containerd, "", None, "/var/lib/containerd"),
            (containerd, plain, Some("# nothing\n"), "/var/lib/containerd"),
            (containerd, plain, Some(moved), "/big/containerd"),
            (containerd, flags, Some(moved), "/flag/containerd"),
            (containerd, &flags.replace('=', "\0"), Some(moved), "/flag/containerd"),
            (containerd, other, Some(moved), "/big/containerd"),
            (&*own, plain, Some(moved), "/data/docker/containerd/daemon"),
        ] {
            let containerd =
                Known::Is(Containerd { args: Containerd::args_of(line), config: config.map(str::to_owned) });
            let found = dirs_of(&serde_json::from_str(info).unwrap(), &containerd);
            assert_eq!(found.data_root.as_deref(), Some(Path::new("/data/docker")));
            assert_eq!(found.image_root.as_deref(), Some(Path::new(image_root)), "{info} {containerd:?}");
        }
        let unknown = Known::Unknown("no such socket".to_owned());
        let none = dirs_of(&SystemInfo::default(), &unknown);
        assert_eq!(none, EngineDirs::default(), "nothing is guessed");
        for (info, image_root) in [
            (overlay2, Some("/data/docker")),
            (&*own, Some("/data/docker/containerd/daemon")),
            // Nor is this.
            (containerd, None),
        ] {
            let found = dirs_of(&serde_json::from_str(info).unwrap(), &unknown);
            assert_eq!(found.image_root.as_deref(), image_root.map(Path::new), "{info}");
        }
    }

    /// Of the process that listens, as it was started; of another program nothing is taken.
    #[tokio::test]
    async fn the_containerd_that_listens_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("config.toml"), "root = '/configured'\n").unwrap();
        // A listener of that name: the interpreter's own would be another.
        let script = "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[-1])\ns.listen()\nprint(1, flush=True)\ntime.sleep(60)";
        let mut started = std::process::Command::new("bash")
            .args([
                "-c",
                r#"exec -a containerd /usr/bin/python3 -c "$0" --config "$1" "$2""#,
                script,
                &at("config.toml"),
                &at("c.sock"),
            ])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Kept open: the interpreter may write the end of its line later (PYTHONUNBUFFERED), and ends if nobody can read it.
        let mut says = started.stdout.take().unwrap();
        std::io::Read::read_exact(&mut says, &mut [0; 1]).unwrap();
        let found = Containerd::of_process(listener(&format!("unix://{}", at("c.sock"))).await.unwrap());
        started.kill().unwrap();
        started.wait().unwrap();
        let found = found.unwrap();
        assert_eq!(found.root(), Path::new("/configured"), "{found:?}");
        let own = tokio::net::UnixListener::bind(at("own.sock")).unwrap();
        let other = Containerd::of_process(listener(&at("own.sock")).await.unwrap()).unwrap();
        assert_eq!(other.args, Vec::<String>::new());
        drop(own);
        // A socket without a listener, and one that never existed: in neither case is the system's used.
        for name in ["own.sock", "none.sock"] {
            let found = Containerd::at(&at(name)).await;
            assert!(matches!(&found, Known::Unknown(why) if why.contains(name)), "{found:?}");
        }
        // One that has ended, and has not been waited for.
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        rustix::process::waitid(
            rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&ended)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .unwrap();
        let found = Containerd::of_process(i32::try_from(ended.id()).unwrap());
        assert!(found.is_err(), "{found:?}");
        ended.wait().unwrap();
    }

    /// Docker answers before its containerd can be looked at, and does not look again by itself.
    #[tokio::test]
    async fn a_containerd_that_cannot_be_looked_at_is_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("c.sock");
        let info = format!(
            r#"{{"DockerRootDir":"/data/docker","DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],
            "Containerd":{{"Address":"{}"}}}}"#,
            socket.display()
        );
        let engine = fake::scripted(dir.path(), move |_| fake::json(200, &info));
        let (_health_tx, health) = watch::channel(Health::Up { version: "29.0.0".to_owned() });
        let (dirs_tx, mut dirs) = watch::channel(EngineDirs::default());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(follow(engine, health, dirs_tx, shutdown.clone()));
        let first = dirs.wait_for(|dirs| dirs.data_root.is_some()).await.unwrap().clone();
        assert_eq!(first.image_root, None);
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::time::pause();
        tokio::time::advance(RETRY_INTERVAL + Duration::from_millis(1)).await;
        tokio::time::resume();
        let found = dirs.wait_for(|dirs| dirs.image_root.is_some()).await.unwrap().clone();
        // This program is no containerd, and so the system's files are asked.
        assert!(found.image_root.is_some());
        shutdown.cancel();
        task.await.unwrap();
    }

    #[test]
    fn what_was_known_is_not_forgotten_because_it_cannot_be_seen() {
        let dirs = |data: &str, images: Option<&str>| EngineDirs {
            data_root: Some(data.into()),
            image_root: images.map(PathBuf::from),
        };
        for (known, found, expected, differs) in [
            (EngineDirs::default(), dirs("/d", None), dirs("/d", None), true),
            (dirs("/d", None), dirs("/d", Some("/i")), dirs("/d", Some("/i")), true),
            (dirs("/d", Some("/i")), dirs("/d", None), dirs("/d", Some("/i")), false),
            // Another Docker.
            (dirs("/d", Some("/i")), dirs("/e", None), dirs("/e", None), true),
        ] {
            let mut known = known;
            assert_eq!(learn(&mut known, found), differs);
            assert_eq!(known, expected);
        }
    }
}
