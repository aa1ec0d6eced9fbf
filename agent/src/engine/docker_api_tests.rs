//! The table of Docker's contracts, run against a real engine that this test starts, and kills after each step: this machine's,
//! or that of the root directory which `TEST_ENGINE` names. With both image stores where it has two.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::CreateImageOptions,
};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    Engine, EngineError,
    docker_api::ApiVersion,
    events::{Changed, EventAction},
    exec_attach::{Process, Streams},
    hijack::Chunk,
    images::ImageSummary,
    inspect::Limits,
    names, pause,
};
use crate::{cgroup::tree::Resource, logs::LogRequest};

const IMAGE: &str = "contract/busybox:1";
const DEADLINE: Duration = Duration::from_secs(120);
/// Mounts another root directory's programs over the machine's, for the started process only.
const WITH_PROGRAMS_OF: &str = r#"mount --rbind "$0/usr" /usr && exec "$@""#;

/// A Docker Engine with its own data directory and its own containerd. As with separate services, killing Docker
/// leaves containerd running.
struct Dockerd {
    dir: tempfile::TempDir,
    containerd: Child,
    process: Child,
    snapshotter: bool,
}

fn logging(mut command: Command, dir: &Path, name: &str) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join(format!("{name}.log"))).unwrap();
    command.stdout(Stdio::null()).stderr(log).spawn().expect("the engine is on this machine")
}

impl Dockerd {
    /// containerd in its own network namespace, to leave the machine's alone, run with the programs of the engine under
    /// test.
    fn spawn_containerd(dir: &Path) -> Child {
        let at = |name: &str| dir.join(name).display().to_string();
        let config = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";
        fs::write(at("containerd.toml"), config).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "slave"]);
        if let Ok(root) = std::env::var("TEST_ENGINE") {
            command.args(["sh", "-c", WITH_PROGRAMS_OF, &root]);
        }
        command.args(["containerd".to_owned(), format!("--config={}", at("containerd.toml"))]);
        command.args([format!("--address={}", at("containerd.sock")), format!("--root={}", at("containerd"))]);
        command.arg(format!("--state={}", at("state")));
        logging(command, dir, "containerd")
    }

    /// dockerd where its containerd is: a container's files are mounted by the one and used by the other.
    fn spawn(dir: &Path, containerd: &Child, snapshotter: bool) -> Child {
        let at = |name: &str| dir.join(name).display().to_string();
        let features = if snapshotter { r#"{"containerd-snapshotter":true}"# } else { "{}" };
        fs::write(at("daemon.json"), format!(r#"{{"features":{features}}}"#)).unwrap();
        let _ = fs::remove_file(at("docker.pid"));
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &containerd.id().to_string(), "--net", "--mount", "dockerd"])
            .args(["--live-restore", "--bridge=none", "--iptables=false"])
            .args([format!("--config-file={}", at("daemon.json")), format!("--pidfile={}", at("docker.pid"))])
            .args([format!("--data-root={}", at("data")), format!("--exec-root={}", at("exec"))])
            .args([format!("--host=unix://{}", at("docker.sock")), format!("--containerd={}", at("containerd.sock"))]);
        logging(command, dir, "dockerd")
    }

    async fn start(snapshotter: bool) -> (Self, Engine) {
        let dir = tempfile::Builder::new().prefix("windlass-contracts-").tempdir().unwrap();
        let there = async |name: &str| {
            let begun = Instant::now();
            while !dir.path().join(name).exists() {
                assert!(begun.elapsed() < DEADLINE, "{name} is not there");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let containerd = Self::spawn_containerd(dir.path());
        there("containerd.sock").await;
        let process = Self::spawn(dir.path(), &containerd, snapshotter);
        there("docker.sock").await;
        let engine = Engine::new(&dir.path().join("docker.sock").display().to_string(), Arc::default()).unwrap();
        let dockerd = Self { dir, containerd, process, snapshotter };
        dockerd.answers(&engine).await;
        (dockerd, engine)
    }

    async fn answers(&self, engine: &Engine) {
        let begun = Instant::now();
        while let Err(error) = engine.info().await {
            assert!(begun.elapsed() < DEADLINE, "{error}: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills it, as a machine that runs out of memory does, and starts it again.
    async fn again(&mut self, engine: &Engine) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let unreachable = engine.ping().await.unwrap_err();
        assert!(unreachable.is_unreachable(), "{unreachable}");
        self.process = Self::spawn(self.dir.path(), &self.containerd, self.snapshotter);
        self.answers(engine).await;
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.dir.path().join("dockerd.log")).unwrap_or_default();
        text.lines().rev().take(30).collect::<Vec<_>>().join("\n")
    }

    /// The shims of its containers and what they hold, by its directory.
    fn shims(&self) -> Vec<i32> {
        let place = self.dir.path().display().to_string();
        let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_one = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("containerd") && line.contains(&place)
        };
        let shims: Vec<i32> = all.filter(is_one).collect();
        let held = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children: Vec<i32> = shims
            .iter()
            .flat_map(|pid| held(pid).split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
            .collect();
        [children, shims].concat()
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        for process in [&mut self.process, &mut self.containerd] {
            let pid = i32::try_from(process.id()).unwrap_or(0);
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            let begun = Instant::now();
            while process.try_wait().is_ok_and(|ended| ended.is_none()) && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        for pid in self.shims() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let below = format!("{}/", self.dir.path().display());
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for at in table.lines().rev().filter_map(|line| line.split(' ').nth(4)).filter(|at| at.starts_with(&below)) {
            let _ = nix::mount::umount2(at, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// A file system with busybox alone, as `docker import` takes it.
fn file_system() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: &str, content: &[u8], mode: u32| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        archive.append_data(&mut header, path, content).unwrap();
    };
    add("bin/sh", &fs::read("/bin/busybox").expect("busybox is on this machine"), 0o755);
    add("etc/greeting", b"hello", 0o644);
    for name in ["sleep", "cat"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, format!("bin/{name}"), "sh").unwrap();
    }
    archive.into_inner().unwrap()
}

async fn import(engine: &Engine) {
    let options = CreateImageOptions {
        from_src: Some("-".to_owned()),
        repo: Some("contract/busybox".to_owned()),
        tag: Some("1".to_owned()),
        ..CreateImageOptions::default()
    };
    let body = bollard::body_full(file_system().into());
    let import = engine.patient(DEADLINE).create_image(Some(options), Some(body), None);
    import.try_for_each(|_| async { Ok(()) }).await.unwrap();
}

fn container(script: &str) -> ContainerCreateBody {
    let labels = [(names::TYPE, names::TYPE_CONTAINER), (names::POD_UID, "u")];
    ContainerCreateBody {
        image: Some(IMAGE.to_owned()),
        entrypoint: Some(["/bin/sh", "-c"].map(str::to_owned).to_vec()),
        cmd: Some(vec![script.to_owned()]),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    }
}

async fn runs(engine: &Engine, id: &str) -> bool {
    engine.inspected(id).await.unwrap().unwrap().state.unwrap().running.unwrap()
}

async fn next(
    events: &mut (impl Stream<Item = Result<Changed, EngineError>> + Unpin),
) -> Option<Result<Changed, EngineError>> {
    tokio::time::timeout(DEADLINE, events.next()).await.expect("an event, or the end")
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|&word| word.to_owned()).collect()
}

/// All of a log that Docker streams.
async fn streamed(engine: &Engine, id: &str, request: &LogRequest) -> String {
    let chunks: Vec<bytes::Bytes> = engine.docker_log(id, request).try_collect().await.unwrap();
    String::from_utf8(chunks.concat()).unwrap()
}

/// Runs each step twice, since callers retry; then the engine is killed, and the effects must persist or be known to be
/// lost.
async fn run(snapshotter: bool) -> ApiVersion {
    let (mut dockerd, engine) = Dockerd::start(snapshotter).await;
    let version = engine.negotiate().await.unwrap();
    assert!(version >= ApiVersion::OLDEST && version <= ApiVersion::NEWEST, "{version}");
    assert_eq!(engine.mounts_images(), version >= ApiVersion::IMAGE_MOUNTS);
    eprintln!("engine {}, API {version}, containerd's store: {snapshotter}", engine.info().await.unwrap().version);

    let image = images(&mut dockerd, &engine).await;
    let id = lifecycle(&mut dockerd, &engine).await;
    commands(&mut dockerd, &engine, &id).await;
    log(&mut dockerd, &engine).await;
    end(&mut dockerd, &engine, &id).await;

    // What no container uses any more can go.
    let summary = engine.images().await.unwrap().into_iter().find(|one| one.id == image).expect("it is listed");
    for _ in 0..2 {
        engine.remove_image(&summary).await.unwrap();
        dockerd.again(&engine).await;
        assert_eq!(engine.image(IMAGE).await.unwrap(), None);
    }
    pause::remove(&engine).await.unwrap();
    pause::remove(&engine).await.unwrap();
    assert!(engine.images().await.unwrap().is_empty());
    let refused = engine.pull_image("127.0.0.1:1/nothing:1", None, DEADLINE, &mut |_| {}).await.unwrap_err();
    assert!(!refused.is_unreachable(), "Docker answers, and says that the registry does not: {refused}");
    version
}

async fn images(dockerd: &mut Dockerd, engine: &Engine) -> String {
    assert_eq!(engine.image(IMAGE).await.unwrap(), None);
    let mut told = Box::pin(engine.image_events());
    let first = tokio::time::timeout(DEADLINE, told.next());
    let (first, ()) = tokio::join!(first, import(engine));
    first.expect("an event").unwrap().unwrap();
    // The stream yields the events received so far, then ends.
    dockerd.again(engine).await;
    while let Some(Ok(())) = tokio::time::timeout(DEADLINE, told.next()).await.expect("the end") {}
    let image = engine.image(IMAGE).await.unwrap().expect("it was imported");
    assert!(image.named && image.id.starts_with("sha256:"), "{image:?}");
    let listed: Vec<ImageSummary> = engine.images().await.unwrap();
    assert!(listed.iter().any(|one| one.id == image.id && one.tags == [IMAGE]), "{listed:?}");
    let pause = pause::ensure(engine).await.unwrap();
    dockerd.again(engine).await;
    assert_eq!(pause::ensure(engine).await.unwrap(), pause);
    for _ in 0..2 {
        let text = engine.file_of_image(&image.id, "helper", "/etc/greeting").await.unwrap();
        assert_eq!(text.as_deref(), Some("hello"));
        assert_eq!(engine.file_of_image(&image.id, "helper", "/etc/nothing").await.unwrap(), None);
    }
    let files: Vec<bytes::Bytes> =
        engine.files_of_image(&image.id, "export").await.unwrap().try_collect().await.unwrap();
    assert!(files.concat().windows(5).any(|five| five == b"hello"));
    engine.remove("export").await.unwrap();
    image.id
}

async fn lifecycle(dockerd: &mut Dockerd, engine: &Engine) -> String {
    let mut events = Box::pin(engine.events());
    let old = engine.create("k8s_c_p_n_u_0", container("exit 0")).await.unwrap();
    // The name that a crash has left taken is free.
    dockerd.again(engine).await;
    let id = engine.create("k8s_c_p_n_u_0", container("while :; do sleep 1; done")).await.unwrap();
    assert!(engine.inspected(&old).await.unwrap().is_none() && !runs(engine, &id).await);
    for _ in 0..2 {
        engine.start(&id).await.unwrap();
    }
    // The stream was not polled yet: events since the call are replayed, provided that the engine was not restarted.
    loop {
        match next(&mut events).await.expect("an event").expect("an event") {
            Changed { id: of, action: EventAction::Started, pod_uid } if of == id => break assert_eq!(pod_uid, "u"),
            _ => {}
        }
    }
    dockerd.again(engine).await;
    while let Some(Ok(_)) = next(&mut events).await {}
    assert!(runs(engine, &id).await, "it lives on");
    engine.start(&id).await.unwrap();
    assert_eq!(engine.running("u", "c").await.unwrap(), None, "it has no name of a container");
    let listed = engine.list().await.unwrap();
    assert!(listed.iter().any(|one| one.id == id && one.running && one.pod_uid == "u"), "{listed:?}");
    let limits = Limits { memory: 64 << 20, cpu_shares: 512, cpu_quota: 50_000 };
    for _ in 0..2 {
        engine.update(&id, &limits, Resource::Cpu).await.unwrap();
        dockerd.again(engine).await;
        let host = engine.inspected(&id).await.unwrap().unwrap().host_config.unwrap();
        assert_eq!((host.cpu_shares, host.cpu_quota), (Some(512), Some(50_000)));
    }
    assert!(engine.images_in_use().await.unwrap().contains(&engine.image(IMAGE).await.unwrap().unwrap().id));
    assert!(engine.layer_bytes().await.unwrap().contains_key(&id));
    id
}

async fn commands(dockerd: &mut Dockerd, engine: &Engine, id: &str) {
    for code in 0..20 {
        let script = format!("echo {code}; echo err >&2; exit {code}");
        let result = engine.exec(id, &words(&["/bin/sh", "-c", &script]), 4096).await.unwrap();
        assert_eq!(result.code, code, "{}", result.output);
        assert!(result.output.contains(&format!("{code}\n")) && result.output.contains("err\n"), "{}", result.output);
    }
    match engine.exec(id, &words(&["/nowhere"]), 4096).await {
        Ok(result) => assert!(matches!(result.code, 126 | 127), "{result:?}"),
        Err(error) => assert!(error.status().is_some(), "{error}"),
    }
    let none = engine.exec("0123456789ab", &words(&["true"]), 10).await.unwrap_err();
    assert!(none.is_not_found(), "{none}");
    // One whose client has gone is ended.
    let long = words(&["/bin/sh", "-c", "exec sleep 4242"]);
    let long = engine.exec(id, &long, 10);
    assert!(tokio::time::timeout(Duration::from_secs(2), long).await.is_err());
    let begun = Instant::now();
    let is_there = || {
        let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
        all.filter_map(|path| fs::read(path).ok()).any(|line| line == b"sleep\x004242\0")
    };
    while is_there() {
        assert!(begun.elapsed() < DEADLINE, "it runs on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let tty = Streams { stdin: true, stdout: true, stderr: false, tty: true };
    let process =
        engine.create_exec(id, &words(&["/bin/sh", "-c", "read line; echo got $line; exit 7"]), tty).await.unwrap();
    let Process::Command { exec, .. } = &process else { panic!("{process:?}") };
    let mut attached = engine.attach(&process, tty).await.unwrap();
    engine.resize(&process, 80, 24).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut attached.input, b"it\n").await.unwrap();
    let mut output = Vec::new();
    while let Some(Chunk::Stdout(bytes) | Chunk::Stderr(bytes)) = attached.output.next().await.unwrap() {
        output.extend_from_slice(&bytes);
    }
    assert!(String::from_utf8_lossy(&output).contains("got it"), "{output:?}");
    assert_eq!(engine.exit_code(exec).await.unwrap(), 7);
    // Resizing a terminal that has just ended fails with a 500 at worst.
    if let Err(late) = engine.resize(&process, 80, 24).await {
        assert_eq!(late.status(), Some(500), "{late}");
    }
    engine.signal(exec, id, Signal::SIGTERM).await.unwrap();
    // When Docker is killed while a command runs, it forgets the command: an error is returned, not an exit code.
    let process = engine.create_exec(id, &words(&["/bin/sh", "-c", "sleep 1000"]), tty).await.unwrap();
    let Process::Command { exec, .. } = &process else { panic!("{process:?}") };
    let mut attached = engine.attach(&process, tty).await.unwrap();
    dockerd.again(engine).await;
    let ended = tokio::time::timeout(DEADLINE, attached.output.next()).await.expect("the stream ends");
    assert!(ended.is_err() || ended.is_ok_and(|chunk| chunk.is_none()));
    let forgotten = engine.exit_code(exec).await.unwrap_err();
    assert!(forgotten.is_not_found(), "{forgotten}");
    engine.signal(exec, id, Signal::SIGTERM).await.unwrap();
    engine.kill_command(exec, id).await;
    assert_eq!(engine.exec(id, &words(&["/bin/sh", "-c", "exit 3"]), 10).await.unwrap().code, 3);
}

async fn log(dockerd: &mut Dockerd, engine: &Engine) {
    let script = "echo one; echo two >&2; echo three; read wait; echo four";
    let made = engine.create("k8s_log_p_n_u_0", ContainerCreateBody { open_stdin: Some(true), ..container(script) });
    let id = made.await.unwrap();
    let whole = LogRequest::default();
    assert_eq!(streamed(engine, &id, &whole).await, "", "it has not begun");
    engine.start(&id).await.unwrap();
    let begun = Instant::now();
    while streamed(engine, &id, &whole).await.lines().count() < 3 {
        assert!(begun.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    dockerd.again(engine).await;
    assert_eq!(streamed(engine, &id, &LogRequest { limit: Some(5), follow: true, ..whole.clone() }).await.len(), 5);
    assert_eq!(engine.log_tail(&id, 1, 100).await.unwrap().lines().count(), 1);
    let stamped = streamed(engine, &id, &LogRequest { timestamps: true, ..whole.clone() }).await;
    let mut times: Vec<i64> = Vec::new();
    for line in stamped.lines() {
        let time: jiff::Timestamp = line.split(' ').next().unwrap().parse().unwrap();
        times.push(i64::try_from(time.as_nanosecond()).unwrap());
    }
    times.sort_unstable();
    let since = LogRequest { since: Some(times[2]), ..whole.clone() };
    assert_eq!(streamed(engine, &id, &since).await.lines().count(), 1, "to the nanosecond: {stamped}");
    let location = engine.log_location(&id).await.unwrap();
    let file = location.file.clone().expect("json-file is the default");
    let read = || String::from_utf8(crate::logs::read_to_end(&file, LogRequest::default()).unwrap()).unwrap();
    assert!(location.running && read().contains("three"), "{}", read());
    // A follower hears the last words, and then the end.
    let follow = LogRequest { follow: true, ..whole.clone() };
    let main = Process::Main { container: id.clone() };
    let all = Streams { stdin: true, stdout: true, stderr: true, tty: false };
    let attached = engine.attach(&main, all);
    let say = async {
        let mut attached = attached.await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut attached.input, b"go\n").await.unwrap();
        while attached.output.next().await.unwrap().is_some() {}
    };
    let (followed, ()) = tokio::join!(streamed(engine, &id, &follow), say);
    assert!(followed.contains("four"), "{followed}");
    dockerd.again(engine).await;
    let location = engine.log_location(&id).await.unwrap();
    assert!(!location.running && read().contains("four"));
    engine.remove(&id).await.unwrap();
    assert!(engine.log_location(&id).await.unwrap_err().is_not_found());
    let gone = engine.docker_log(&id, &whole).try_collect::<Vec<_>>().await.unwrap_err();
    assert!(gone.to_string().contains("No such container"), "{gone}");
}

async fn end(dockerd: &mut Dockerd, engine: &Engine, id: &str) {
    let in_use = engine.remove_image_name(&engine.image(IMAGE).await.unwrap().unwrap().id, || "it".to_owned()).await;
    assert_eq!(in_use.unwrap_err().status(), Some(409), "a container uses it");
    let mut events = Box::pin(engine.events());
    for _ in 0..2 {
        engine.stop(id, Duration::from_secs(1)).await.unwrap();
        engine.kill(id).await.unwrap();
    }
    let died = loop {
        let event = next(&mut events).await.expect("an event").expect("an event");
        if event.action == EventAction::Died {
            break event.id;
        }
    };
    assert_eq!(died, id);
    dockerd.again(engine).await;
    let state = engine.inspected(id).await.unwrap().unwrap().state.unwrap();
    assert!(matches!(state.exit_code, Some(137 | 143)) && state.running == Some(false), "{state:?}");
    let refused = engine.exec(id, &words(&["true"]), 10).await.unwrap_err();
    assert_eq!(refused.status(), Some(409), "{refused}");
    for _ in 0..2 {
        engine.remove(id).await.unwrap();
        dockerd.again(engine).await;
        assert!(engine.inspected(id).await.unwrap().is_none());
        engine.stop(id, Duration::from_secs(1)).await.unwrap();
        engine.kill(id).await.unwrap();
    }
    assert!(engine.start(id).await.unwrap_err().is_not_found());
    assert!(engine.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_contracts_hold_whenever_the_engine_is_killed() {
    // Engines before 25 have one store.
    if run(false).await >= ApiVersion(1, 44) {
        run(true).await;
    }
}
