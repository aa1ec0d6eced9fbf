//! What real engines answer, of several versions and with both image stores: `recorded/`, by `scripts/record-docker.py`. Every
//! reader of this module runs over all of it, through the client, and reads the same of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;

use super::{
    Cause, Engine, check, data_root,
    events::{Changed, EventAction},
    fake,
    inspect::{Instance, State},
};
use crate::known::Known;

const LAYERS: &str = "127.0.0.1:5000/rec/layers:1";

/// One engine's answers.
struct Recorded {
    name: String,
    /// Status, content type and body, by method and path.
    answers: BTreeMap<String, (u16, String, String)>,
}

impl Recorded {
    fn read(dir: &Path) -> Self {
        let read = |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            let (head, body) = text.split_once('\n').unwrap();
            let words: Vec<&str> = head.split(' ').collect();
            let (status, kind) = (words[words.len() - 2].parse().unwrap(), words[words.len() - 1].to_owned());
            (words[..words.len() - 2].join(" "), (status, kind, body.to_owned()))
        };
        let files = fs::read_dir(dir).unwrap().map(|entry| read(&entry.unwrap().path()));
        Self { name: dir.file_name().unwrap().to_string_lossy().into_owned(), answers: files.collect() }
    }

    fn all() -> Vec<Self> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/recorded");
        let mut all: Vec<Self> = fs::read_dir(dir).unwrap().map(|entry| Self::read(&entry.unwrap().path())).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let versions: BTreeSet<&str> = all.iter().filter_map(|one| one.name.split('.').next()).collect();
        assert!(["20", "26", "28"].iter().all(|version| versions.contains(version)), "{versions:?}");
        assert!(all.iter().any(|one| one.has_containerd()));
        all
    }

    fn has_containerd(&self) -> bool {
        self.name.ends_with("-containerd")
    }

    /// The answer to the first line of a request.
    fn answer(&self, line: &str, pulled: &Mutex<u32>) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let (path, query) = words[1].split_once('?').unwrap_or((words[1], ""));
        let path = path.strip_prefix("/v1.").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or(path);
        let path = path.replace("%3A", ":").replace("%2F", "/");
        let key = match path.as_str() {
            "/events" if query.contains("label") => "GET /events pods".to_owned(),
            "/events" if query.contains("image") => "GET /events images".to_owned(),
            "/events" => "GET /events others".to_owned(),
            "/images/create" if query.contains("nothing") => {
                "POST /images/create 127.0.0.1:5000/rec/nothing:1".to_owned()
            }
            "/images/create" => {
                let mut pulled = pulled.lock();
                *pulled += 1;
                format!("POST /images/create {}", if *pulled == 1 { LAYERS } else { "again" })
            }
            _ => format!("{} {path}", words[0]),
        };
        let Some((status, kind, body)) = self.answers.get(&key) else { panic!("{}: {key} is not recorded", self.name) };
        format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    /// The id of a container, by its name.
    fn id(&self, name: &str) -> String {
        let of_name = format!(r#""Name":"/{name}""#);
        let found = self
            .answers
            .iter()
            .find(|(key, (.., body))| key.starts_with("GET /containers/") && body.contains(&of_name));
        found.unwrap_or_else(|| panic!("{}: {name}", self.name)).0.split('/').nth(2).unwrap().to_owned()
    }

    fn of_pod(&self, name: &str) -> String {
        self.id(&format!("k8s_{name}_p_n_u_0"))
    }
}

/// Runs a reader over every recording, each behind a client that has agreed on its version.
async fn each(read: impl AsyncFn(&Recorded, &Engine)) {
    for recorded in Recorded::all() {
        let dir = tempfile::tempdir().unwrap();
        let recorded = std::sync::Arc::new(recorded);
        let (answering, pulled) = (std::sync::Arc::clone(&recorded), Mutex::new(0));
        let engine = fake::scripted(dir.path(), move |line| answering.answer(line, &pulled));
        engine.negotiate().await.unwrap();
        read(&recorded, &engine).await;
    }
}

#[tokio::test]
async fn what_an_engine_is() {
    each(async |recorded, engine| {
        let info = engine.info().await.unwrap();
        let version = recorded.name.split('-').next().unwrap();
        assert!(info.version.starts_with(version), "{}: {info:?}", recorded.name);
        assert!(info.runtimes.contains("runc"), "{}: {info:?}", recorded.name);
        let (_, _, body) = &recorded.answers["GET /info"];
        let info: bollard::models::SystemInfo = serde_json::from_str(body).unwrap();
        let dirs = data_root::dirs_of(&info, &Known::Is(data_root::Containerd::default()));
        let images = if recorded.has_containerd() { "/var/lib/containerd" } else { "/var/lib/docker" };
        assert_eq!(dirs.image_root.as_deref(), Some(Path::new(images)), "{}", recorded.name);
        assert_eq!(dirs.data_root.as_deref(), Some(Path::new("/var/lib/docker")), "{}", recorded.name);
        let failures: Vec<String> = check::findings(info, "1.41".to_owned(), None)
            .into_iter()
            .filter(|finding| finding.status == windlass_kit::preflight::Status::Fail)
            .map(|finding| format!("{finding:?}"))
            .collect();
        assert!(failures.is_empty(), "{}: {failures:?}", recorded.name);
    })
    .await;
}

#[tokio::test]
async fn how_containers_are() {
    each(async |recorded, engine| {
        let inspect = async |name: &str| engine.inspect(&recorded.of_pod(name)).await.unwrap().unwrap();
        let exit = async |name: &str| {
            let State::Exited(exit) = inspect(name).await.state else { panic!("{}: {name} runs", recorded.name) };
            exit
        };
        let is = &recorded.name;
        for name in ["POD", "main", "paused"] {
            let Instance { state, identity, .. } = inspect(name).await;
            assert!(
                matches!(state, State::Running { pid, started_at } if pid > 1 && started_at.as_second() > 0),
                "{is}: {state:?}"
            );
            assert_eq!((identity.uid.as_str(), identity.container.as_str()), ("u", name), "{is}");
        }
        assert_eq!(inspect("created").await.state, State::Created, "{is}");
        let sandbox = inspect("POD").await;
        assert!(
            sandbox.is_sandbox() && sandbox.addresses == ["10.244.0.2".parse::<std::net::IpAddr>().unwrap()],
            "{is}"
        );
        let main = inspect("main").await;
        assert_eq!(
            (main.limits.memory, main.limits.cpu_shares, main.limits.cpu_quota),
            (64 << 20, 512, 50_000),
            "{is}"
        );
        assert_eq!(main.runtime, "runc", "{is}");
        assert!(main.created_at.as_second() > 0 && main.image_id.starts_with("sha256:"), "{is}: {main:?}");
        let exited = exit("exited").await;
        assert!(exited.code == 3 && exited.started_at.is_some_and(|at| at <= exited.finished_at), "{is}: {exited:?}");
        assert_eq!(exit("killed").await.code, 137, "{is}");
        let oom = exit("oom").await;
        assert!(oom.oom_killed && oom.code == 137, "{is}: {oom:?}");
        let broken = exit("broken").await;
        assert!(matches!(broken.code, 126..=128) && broken.started_at.is_none(), "{is}: {broken:?}");
        assert!(broken.error.contains("/nowhere"), "{is}: {broken:?}");
        assert_eq!(engine.inspect(&recorded.id("web")).await.unwrap(), None, "{is}: of no pod");
        let gone = recorded.answers.iter().find(|(key, (status, ..))| key.contains("/containers/") && *status == 404);
        let gone = gone.unwrap().0.split('/').nth(2).unwrap();
        assert_eq!(engine.inspect(gone).await.unwrap(), None, "{is}");
        let log = engine.log_location(&recorded.of_pod("main")).await.unwrap();
        assert!(log.running && log.file.unwrap().starts_with("/var/lib/docker/containers"), "{is}");
    })
    .await;
}

/// The list says of each container what an inspection says.
#[tokio::test]
async fn lists_agree_with_inspections() {
    each(async |recorded, engine| {
        let (helpers, listed): (Vec<_>, Vec<_>) = engine.list().await.unwrap().into_iter().partition(|l| l.helper);
        assert_eq!(helpers.len(), 1, "{}", recorded.name);
        assert_eq!(listed.len(), 8, "{}", recorded.name);
        for one in listed {
            let inspected = engine.inspect(&one.id).await.unwrap().unwrap();
            assert_eq!(one.running, inspected.is_running(), "{}: {inspected:?}", recorded.name);
            assert_eq!(one.pod_uid, "u");
            assert_eq!(one.created, inspected.created_at.as_second(), "{}", recorded.name);
        }
        let used = engine.images_in_use().await.unwrap();
        let image = engine.image("rec/busybox:1").await.unwrap().unwrap();
        assert_eq!(used, BTreeSet::from([image.id]), "{}", recorded.name);
    })
    .await;
}

#[tokio::test]
async fn containers_of_others() {
    each(async |recorded, engine| {
        let found = engine.unmanaged_now().await.unwrap();
        let names: Vec<(&str, Option<bool>)> = found.iter().map(|one| (one.name.as_str(), one.healthy)).collect();
        assert_eq!(names, [("web", Some(true))], "{}: one that is being restarted does not run", recorded.name);
        assert!(found[0].pid > 1 && found[0].image == "rec/busybox:1", "{}: {found:?}", recorded.name);
    })
    .await;
}

#[tokio::test]
async fn images_of_both_stores() {
    each(async |recorded, engine| {
        let is = &recorded.name;
        let image = engine.image(LAYERS).await.unwrap().unwrap();
        assert!(image.named && image.id.starts_with("sha256:"), "{is}: {image:?}");
        assert!(image.shown.starts_with("127.0.0.1:5000/rec/layers@sha256:"), "{is}: {image:?}");
        assert_eq!(image.user, "1000", "{is}");
        assert!(image.size > 12 << 20, "{is}: {image:?}");
        let local = engine.image("rec/busybox:1").await.unwrap().unwrap();
        assert!(local.named && !local.shown.is_empty() && local.size > 0, "{is}: {local:?}");
        assert_eq!(engine.image("rec/nothing:1").await.unwrap(), None, "{is}");
        let all = engine.images().await.unwrap();
        let tags: BTreeSet<&str> = all.iter().flat_map(|image| &image.tags).map(String::as_str).collect();
        assert_eq!(tags, BTreeSet::from([LAYERS, "rec/busybox:1", "rec/nameless:1", "rec/other:2"]), "{is}");
        let layers = all.iter().find(|one| one.id == image.id).unwrap();
        assert!(layers.tags.len() == 2 && layers.size > 12 << 20, "{is}: {layers:?}");
        // containerd's image store reports the digest of one of its repositories.
        assert!(layers.digests.iter().any(|digest| digest.contains("@sha256:")), "{is}: {layers:?}");
    })
    .await;
}

#[tokio::test]
async fn the_progress_of_pulls() {
    each(async |recorded, engine| {
        let is = &recorded.name;
        let mut told = Vec::new();
        let minute = Duration::from_secs(60);
        engine.pull_image(LAYERS, None, minute, &mut |news| told.push(news)).await.unwrap();
        let of_layers: Vec<_> = told.iter().filter(|news| !news.layer.is_empty()).collect();
        assert!(!of_layers.is_empty(), "{is}: {told:?}");
        assert!(told.iter().any(|news| news.of_bytes > 12 << 20 && news.bytes <= news.of_bytes), "{is}: {told:?}");
        let last = told.last().unwrap();
        assert!(last.status.starts_with("Status: Downloaded newer image"), "{is}: {last:?}");
        assert!(super::images::is_followed(&told), "{is}: {told:?}");
        let mut again = Vec::new();
        engine.pull_image(LAYERS, None, minute, &mut |news| again.push(news.status)).await.unwrap();
        assert!(again.last().unwrap().starts_with("Status: Image is up to date"), "{is}: {again:?}");
        let missing = "127.0.0.1:5000/rec/nothing:1";
        let error = engine.pull_image(missing, None, minute, &mut |_| {}).await.unwrap_err();
        assert!(matches!(error.cause, Cause::Refused(404) | Cause::Failed), "{is}: {error:?}");
        assert!(error.reason.contains("not found") || error.reason.contains("manifest unknown"), "{is}: {error}");
    })
    .await;
}

#[tokio::test]
async fn events_of_containers_and_images() {
    each(async |recorded, engine| {
        let is = &recorded.name;
        let events: Vec<Changed> = engine.events().try_collect().await.unwrap();
        assert!(events.iter().all(|event| event.pod_uid == "u"), "{is}: {events:?}");
        let of = |id: &str| -> Vec<EventAction> { events.iter().filter(|e| e.id == id).map(|e| e.action).collect() };
        use EventAction::{Destroyed, Died, Started};
        for (name, actions) in [
            ("POD", &[Started][..]),
            ("created", &[]),
            ("paused", &[Started]),
            ("exited", &[Started, Died]),
            ("killed", &[Started, Died]),
            ("oom", &[Started, Died]),
        ] {
            assert_eq!(of(&recorded.of_pod(name)), actions, "{is}: {name}");
        }
        assert!(!of(&recorded.of_pod("broken")).contains(&Started), "{is}");
        let destroyed: Vec<&Changed> = events.iter().filter(|event| event.action == Destroyed).collect();
        assert_eq!(destroyed.len(), 1, "{is}");
        assert_eq!(of(&destroyed[0].id), [Started, Died, Destroyed], "{is}");
        let images: Vec<()> = engine.image_events().try_collect().await.unwrap();
        assert!(images.len() >= 3, "{is}: {} events of images", images.len());
        // Every event of an engine can be parsed, including those that the agent does not use.
        let (_, _, all) = &recorded.answers["GET /events all"];
        for line in all.lines() {
            let event: Result<bollard::models::EventMessage, _> = serde_json::from_str(line);
            assert!(event.is_ok(), "{is}: {event:?} of {line}");
        }
        let mut others = Box::pin(engine.events_of_others());
        let mut count = 0;
        while let Some(event) = others.next().await {
            count += usize::from(event.unwrap().actor.is_some());
        }
        assert!(count > 10, "{is}: {count}");
    })
    .await;
}

#[tokio::test]
async fn commands_have_codes() {
    each(async |recorded, engine| {
        let is = &recorded.name;
        assert_eq!(engine.exit_code("exec-ended").await.unwrap(), 7, "{is}");
        let broken = engine.exit_code("exec-broken").await.unwrap();
        assert!(matches!(broken, 126..=128), "{is}: {broken}");
        let runs = engine.command_state("exec-runs", "").await.unwrap().unwrap();
        assert!(runs.running == Some(true) && runs.pid.is_some_and(|pid| pid > 1), "{is}: {runs:?}");
        assert!(engine.command_state("exec-missing", "").await.unwrap().is_none(), "{is}");
    })
    .await;
}
