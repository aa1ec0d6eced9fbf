//! Kills the API again and again during many writes, with watchers attached: acknowledged writes survive, no resource
//! version is given twice, and a watcher that resumes either misses nothing or gets 410 Gone.
//!
//! `WINDLASS_KILLS` sets the number of kills, without a time limit; the default is a hundred, or as many as fit into a
//! minute.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;

mod api_process;
mod config;
use api_process::Life;

const TIMES: usize = 100;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout, for slow machines too.
const LEAST: usize = 20;
const TEXT: &str = "text";

/// The written objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Map,
    /// A leader election lease: durable before the response.
    Leader,
    /// A node's heartbeat: durable later.
    Heartbeat,
    Event,
}

const KINDS: [Kind; 4] = [Kind::Map, Kind::Leader, Kind::Heartbeat, Kind::Event];

impl Kind {
    fn resource(self) -> ApiResource {
        let (group, kind) = match self {
            Self::Map => ("", "ConfigMap"),
            Self::Leader | Self::Heartbeat => ("coordination.k8s.io", "Lease"),
            Self::Event => ("", "Event"),
        };
        ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, "v1", kind))
    }

    fn namespace(self) -> &'static str {
        if self == Self::Heartbeat { "kube-node-lease" } else { "default" }
    }

    fn object(self, name: &str, text: &str) -> DynamicObject {
        let data = match self {
            Self::Event => json!({"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}}),
            _ => json!({}),
        };
        let mut object = DynamicObject::new(name, &self.resource()).within(self.namespace()).data(data);
        object.annotations_mut().insert(TEXT.to_owned(), text.to_owned());
        object
    }
}

fn api(client: &Client, kind: Kind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), kind.namespace(), &kind.resource())
}

fn text_of(object: &DynamicObject) -> String {
    object.annotations().get(TEXT).cloned().unwrap_or_default()
}

fn revision_of(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).expect("a revision")
}

/// Every observed resource version, with its object.
#[derive(Debug, Clone, Default)]
struct Given(Arc<Mutex<HashMap<u64, String>>>);

impl Given {
    fn note(&self, kind: Kind, object: &DynamicObject) {
        let what = format!("{kind:?} {} {:?}", object.name_any(), text_of(object));
        let mut given = self.0.lock();
        let before = given.entry(revision_of(object)).or_insert_with(|| what.clone());
        assert_eq!(*before, what, "revision {} is given twice", revision_of(object));
    }

    fn last(&self) -> u64 {
        self.0.lock().keys().max().copied().unwrap_or(0)
    }
}

/// A writer of one object, which remembers the responses.
#[derive(Debug, Clone)]
struct Writer {
    kind: Kind,
    name: String,
    /// The last acknowledged state; `None` for no object.
    sure: Option<String>,
    /// The last write without a response.
    asked: Option<Option<String>>,
    count: usize,
}

impl Writer {
    /// Writes until the API is killed.
    async fn storm(&mut self, client: Client, given: Given) {
        let api = api(&client, self.kind);
        let mut stored: Option<DynamicObject> = None;
        loop {
            self.count += 1;
            let text = self.count.to_string();
            let delete = stored.is_some() && self.count.is_multiple_of(7);
            self.asked = Some((!delete).then(|| text.clone()));
            let done = match &mut stored {
                Some(_) if delete => api.delete(&self.name, &DeleteParams::default()).await.map(|_| None),
                Some(object) => {
                    object.annotations_mut().insert(TEXT.to_owned(), text.clone());
                    api.replace(&self.name, &PostParams::default(), object).await.map(Some)
                }
                None => api.create(&PostParams::default(), &self.kind.object(&self.name, &text)).await.map(Some),
            };
            match done {
                Ok(object) => {
                    object.iter().for_each(|o| given.note(self.kind, o));
                    self.sure = self.asked.take().expect("what was asked for");
                    stored = object;
                }
                // It exists from an earlier run.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    match api.get_opt(&self.name).await {
                        Ok(found) => stored = found,
                        Err(_) => return,
                    }
                }
                Err(kube::Error::Api(status)) => panic!("{self:?}: {status:?}"),
                Err(_) => return,
            }
        }
    }

    /// After a kill the state must be the acknowledged one, or the last requested one.
    async fn check(&mut self, life: &Life) {
        let found =
            api(&life.client, self.kind).get_opt(&self.name).await.expect("an API that lives").map(|o| text_of(&o));
        if matches!(self.kind, Kind::Map | Kind::Leader) {
            let may = self.asked.as_ref() == Some(&found);
            assert!(found == self.sure || may, "{self:?} is {found:?}");
        }
        (self.sure, self.asked) = (found, None);
    }
}

/// A watcher of a kind, with its cache.
#[derive(Debug, Clone, Default)]
struct Follower {
    objects: BTreeMap<String, u64>,
    after: String,
    resumed: usize,
    listed: usize,
}

impl Follower {
    async fn list(&mut self, client: &Client, kind: Kind, given: &Given) -> Result<(), kube::Error> {
        let list = api(client, kind).list(&ListParams::default()).await?;
        list.items.iter().for_each(|o| given.note(kind, o));
        self.objects = list.items.iter().map(|o| (o.name_any(), revision_of(o))).collect();
        self.after = list.metadata.resource_version.expect("a revision");
        self.listed += 1;
        Ok(())
    }

    /// Watches until the API is killed, or until revision `until` is seen.
    async fn follow(&mut self, client: &Client, kind: Kind, given: &Given, until: u64) -> Result<(), kube::Error> {
        loop {
            if self.after.is_empty() {
                self.list(client, kind, given).await?;
            }
            if self.after.parse::<u64>().expect("a revision") >= until {
                return Ok(());
            }
            let watch = api(client, kind).watch(&WatchParams::default(), &self.after).await;
            let mut stream = match watch {
                Ok(stream) => stream.boxed(),
                Err(kube::Error::Api(status)) if status.code == 410 => {
                    self.after.clear();
                    continue;
                }
                Err(error) => return Err(error),
            };
            loop {
                let Some(event) = stream.try_next().await? else { break };
                let object = match &event {
                    WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o) => o,
                    WatchEvent::Error(status) if status.code == 410 => {
                        self.after.clear();
                        break;
                    }
                    other => panic!("{other:?}"),
                };
                given.note(kind, object);
                let (name, revision) = (object.name_any(), revision_of(object));
                match &event {
                    WatchEvent::Added(_) => {
                        assert!(self.objects.insert(name, revision).is_none(), "{kind:?}: {event:?}")
                    }
                    WatchEvent::Modified(_) => {
                        assert!(self.objects.insert(name, revision).is_some(), "{kind:?}: {event:?}")
                    }
                    _ => assert!(self.objects.remove(&name).is_some(), "{kind:?}: {event:?}"),
                }
                self.after = revision.to_string();
                if revision >= until {
                    return Ok(());
                }
            }
        }
    }

    /// After a kill, before anything else: resumes the watch, and the cache must become equal to the state.
    async fn resume(&mut self, life: &Life, kind: Kind, given: &Given) {
        let api = api(&life.client, kind);
        let mark = match api.get_opt("mark").await.expect("an API that lives") {
            Some(mark) => {
                api.replace("mark", &PostParams::default(), &mark_again(mark)).await.expect("an API that lives")
            }
            None => api.create(&PostParams::default(), &kind.object("mark", "0")).await.expect("an API that lives"),
        };
        given.note(kind, &mark);
        let listed = self.listed;
        self.follow(&life.client, kind, given, revision_of(&mark)).await.expect("an API that lives");
        self.resumed += usize::from(self.listed == listed);
        let list = api.list(&ListParams::default()).await.expect("an API that lives");
        let there: BTreeMap<String, u64> = list.items.iter().map(|o| (o.name_any(), revision_of(o))).collect();
        assert_eq!(self.objects, there, "{kind:?}: something was missed");
    }
}

fn mark_again(mut mark: DynamicObject) -> DynamicObject {
    let next = text_of(&mark).parse::<u64>().expect("a number") + 1;
    mark.annotations_mut().insert(TEXT.to_owned(), next.to_string());
    mark
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_answered_is_lost_and_no_revision_comes_twice_over_kills() {
    let asked: Option<usize> = std::env::var("WINDLASS_KILLS").ok().map(|times| times.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (given, begun) = (Given::default(), Instant::now());
    let mut writers: Vec<Writer> = KINDS
        .iter()
        .flat_map(|kind| (0..2).map(move |n| (*kind, format!("w{n}"))))
        .map(|(kind, name)| Writer { kind, name, sure: None, asked: None, count: 0 })
        .collect();
    let mut followers: Vec<(Kind, Follower)> = KINDS.iter().map(|kind| (*kind, Follower::default())).collect();
    let mut kills = 0;
    while kills < asked.unwrap_or(TIMES) && (asked.is_some() || kills < LEAST || begun.elapsed() < DEFAULT_TIMEOUT) {
        let mut life = Life::begin(dir.path());
        let last = given.last();
        let list = api(&life.client, Kind::Map).list(&ListParams::default()).await.unwrap();
        let now: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
        assert!(now > last, "revisions went back from {last} to {now}");
        for writer in &mut writers {
            writer.check(&life).await;
        }
        for (kind, follower) in &mut followers {
            follower.resume(&life, *kind, &given).await;
        }

        let (mut storm, mut following) = (JoinSet::new(), JoinSet::new());
        // In some runs almost all writes are durable later.
        let (quiet, calm): (Vec<Writer>, Vec<Writer>) =
            writers.drain(..).partition(|w| kills % 3 == 0 && matches!(w.kind, Kind::Map | Kind::Leader));
        for mut writer in calm {
            let (client, given) = (life.client.clone(), given.clone());
            storm.spawn(async move {
                writer.storm(client, given).await;
                writer
            });
        }
        writers.extend(quiet);
        for (kind, mut follower) in followers.drain(..) {
            let (client, given) = (life.client.clone(), given.clone());
            following.spawn(async move {
                let ended = follower.follow(&client, kind, &given, u64::MAX).await;
                assert!(!matches!(&ended, Err(kube::Error::Api(_))), "{ended:?}");
                (kind, follower)
            });
        }
        tokio::time::sleep(Duration::from_millis(40 + (kills as u64 * 37) % 160)).await;
        life.kill();
        while let Some(writer) = storm.join_next().await {
            writers.push(writer.unwrap());
        }
        while let Some(follower) = following.join_next().await {
            followers.push(follower.unwrap());
        }
        kills += 1;
    }
    let writes: usize = writers.iter().map(|w| w.count).sum();
    let resumed: Vec<(Kind, usize, usize)> = followers.iter().map(|(k, f)| (*k, f.resumed, f.listed)).collect();
    eprintln!("{kills} kills in {:?}, {writes} writes; resumed and listed: {resumed:?}", begun.elapsed());
    assert!(writes > kills * 10, "no storm: {writes} writes in {kills} lives");
    let maps = followers.iter().find(|(kind, _)| *kind == Kind::Map).unwrap();
    assert!(maps.1.resumed > kills / 10, "nobody could go on where he was: {resumed:?}");
}
