//! One informer: what its handlers hear and what its cache shows.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, ReplicationController};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DeleteParams, PostParams},
    runtime::watcher,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use windlass_test_api::TestApi;

use crate::runtime::{
    cached::Cached,
    index::Index,
    informer::{Informer, Life},
    key::Key,
    status_writer::StatusWriter,
};

impl Cached for ConfigMap {}

fn object(name: &str, uid: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some("default".into());
    object.metadata.name = Some(name.into());
    object.metadata.uid = Some(uid.into());
    object.metadata.resource_version = Some(version.into());
    object
}

fn informer() -> (Informer<ConfigMap>, Arc<Mutex<Vec<String>>>) {
    let informer = Informer::new(CancellationToken::new());
    let changes = listen(&informer, &Life::default());
    (informer, changes)
}

/// What a handler hears: the UIDs before and after each change.
fn listen(informer: &Informer<ConfigMap>, life: &Life) -> Arc<Mutex<Vec<String>>> {
    let changes: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&changes);
    informer.on_change(life, move |old, new| {
        let part = |o: Option<&Arc<ConfigMap>>| o.map_or("-".into(), |o| o.uid().unwrap_or_default());
        log.lock().push(format!("{}>{}", part(old), part(new)));
    });
    changes
}

#[test]
fn handlers_get_the_previous_object() {
    let (informer, changes) = informer();
    let mut listed = None;
    for event in [
        watcher::Event::Init,
        watcher::Event::InitApply(object("a", "1", "5")),
        watcher::Event::InitDone,
        watcher::Event::Apply(object("b", "2", "6")),
        watcher::Event::Apply(object("b", "2", "7")),
        watcher::Event::Delete(object("a", "1", "8")),
        // A list after a break: b was replaced by another b, c is new.
        watcher::Event::Init,
        watcher::Event::InitApply(object("b", "3", "9")),
        watcher::Event::InitApply(object("c", "4", "10")),
        watcher::Event::InitDone,
    ] {
        informer.apply(event, &mut listed);
    }
    assert_eq!(*changes.lock(), ["->1", "->2", "2>2", "1>-", "2>-", "->3", "->4"]);
    assert_eq!(informer.cache().in_namespace("default").len(), 2);
    assert!(informer.cache().in_namespace("defaul").is_empty());
}

#[test]
fn own_writes_are_waited_for() {
    let (informer, _) = informer();
    let (cache, mut listed) = (informer.cache(), None);
    informer.apply(watcher::Event::Init, &mut listed);
    informer.apply(watcher::Event::InitDone, &mut listed);
    let point = cache.sync_point(Some("20"));
    assert!(!cache.reached(point));
    informer.apply(watcher::Event::Apply(object("a", "1", "19")), &mut listed);
    assert!(!cache.reached(point));
    informer.apply(watcher::Event::Apply(object("b", "2", "20")), &mut listed);
    assert!(cache.reached(point));

    // The object came and went while the watch was broken: only the next list shows that.
    let point = cache.sync_point(Some("30"));
    informer.apply(watcher::Event::Init, &mut listed);
    assert!(!cache.reached(point));
    informer.apply(watcher::Event::InitDone, &mut listed);
    assert!(cache.reached(point));
}

#[tokio::test]
async fn a_status_is_written_of_the_version_that_was_seen_and_waited_for() {
    let server = TestApi::new().await;
    let controllers: Api<ReplicationController> = Api::namespaced(server.user(), "default");
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}});
    let web = json!({"metadata": {"name": "web"}, "spec": {"template": template}});
    let web: ReplicationController = serde_json::from_value(web).unwrap();
    let seen = controllers.create(&PostParams::default(), &web).await.unwrap();
    let informer: Informer<ReplicationController> = Informer::new(CancellationToken::new());
    let (mut listed, cache) = (None, informer.cache());
    for event in [watcher::Event::Init, watcher::Event::InitApply(seen.clone()), watcher::Event::InitDone] {
        informer.apply(event, &mut listed);
    }
    let writer = StatusWriter::new(server.client(), cache);
    let (key, uid) = (Key::of(seen.meta()), seen.uid().unwrap());
    let status = |replicas: i32| json!({"status": {"replicas": replicas}});
    let stored = async || controllers.get("web").await.unwrap();
    writer.write(&seen, status(1)).await.unwrap();
    assert!(!writer.is_shown(&key, &uid), "the cache is behind");
    // What was made of an older version takes nothing back.
    assert!(writer.write(&seen, status(2)).await.is_err());
    let newest = stored().await;
    assert_eq!(newest.status.as_ref().map(|s| s.replicas), Some(1));
    informer.apply(watcher::Event::Apply(newest.clone()), &mut listed);
    assert!(writer.is_shown(&key, &uid));
    // Another object of the same name does not belong to it.
    controllers.delete("web", &DeleteParams::background()).await.unwrap();
    controllers.create(&PostParams::default(), &web).await.unwrap();
    assert!(writer.write(&newest, status(3)).await.is_err());
    assert_eq!(stored().await.status.map(|s| s.replicas), Some(0));
}

#[test]
fn a_late_handler_hears_of_what_is_there_and_one_that_is_over_of_nothing() {
    let (informer, first) = informer();
    let (late, mut listed) = (Life::default(), None);
    informer.apply(watcher::Event::Apply(object("a", "1", "1")), &mut listed);
    let second = listen(&informer, &late);
    informer.apply(watcher::Event::Apply(object("b", "2", "2")), &mut listed);
    // The watch has not shown that another object was in between.
    informer.apply(watcher::Event::Apply(object("b", "3", "4")), &mut listed);
    late.end();
    informer.apply(watcher::Event::Delete(object("a", "1", "5")), &mut listed);
    assert_eq!(*first.lock(), ["->1", "->2", "2>-", "->3", "1>-"]);
    assert_eq!(*second.lock(), ["->1", "->2", "2>-", "->3"]);
}

#[tokio::test]
async fn a_handler_that_panics_ends_alone() {
    let (informer, others) = informer();
    let (life, mut listed) = (Life::default(), None);
    informer.on_change(&life.child(), |_, new| assert!(new.is_none_or(|o| o.name_any() != "b"), "a test panics"));
    let with_it = listen(&informer, &life);
    for name in ["a", "b", "c"] {
        informer.apply(watcher::Event::Apply(object(name, name, "1")), &mut listed);
    }
    life.failed().await;
    assert_eq!(*others.lock(), ["->a", "->b", "->c"]);
    assert_eq!(*with_it.lock(), ["->a", "->b", "->c"], "its owner decides what else goes");
}

const BY_LABEL: Index<ConfigMap> =
    Index::new("label", |object| object.labels().iter().map(|(key, value)| format!("{key}={value}")).collect());

#[test]
fn an_index_follows_changes_whenever_it_was_added() {
    let (informer, _) = informer();
    let (cache, mut listed) = (informer.cache(), None);
    let labelled = |name: &str, uid: &str, labels: &[&str]| {
        let mut object = object(name, uid, "1");
        object.metadata.labels = Some(labels.iter().map(|l| ((*l).to_owned(), "x".to_owned())).collect());
        object
    };
    let found = |value: &str| {
        let names: Vec<String> = cache.by_index(&BY_LABEL, value).iter().map(|o| o.name_any()).collect();
        assert_eq!(cache.count(&BY_LABEL, value), names.len());
        names.concat()
    };
    informer.apply(watcher::Event::Apply(labelled("b", "1", &["p", "q"])), &mut listed);
    informer.apply(watcher::Event::Apply(labelled("a", "2", &["q"])), &mut listed);
    assert_eq!((found("p=x"), found("q=x")), ("b".into(), "ab".into()), "without the index, by a walk");
    informer.add_index(&BY_LABEL);
    informer.add_index(&BY_LABEL);
    assert_eq!((found("p=x"), found("q=x")), ("b".into(), "ab".into()));
    informer.apply(watcher::Event::Apply(labelled("a", "2", &["p"])), &mut listed);
    informer.apply(watcher::Event::Delete(labelled("b", "1", &["p", "q"])), &mut listed);
    assert_eq!((found("p=x"), found("q=x")), ("a".into(), String::new()));
    let rarest = |values: &[&str]| {
        let values: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        cache.by_rarest(&BY_LABEL, &values).len()
    };
    assert_eq!((rarest(&["p=x"]), rarest(&["p=x", "q=x"]), rarest(&[])), (1, 0, 0));
    for event in [watcher::Event::Init, watcher::Event::InitApply(labelled("c", "3", &["q"])), watcher::Event::InitDone]
    {
        informer.apply(event, &mut listed);
    }
    assert_eq!((found("p=x"), found("q=x")), (String::new(), "c".into()));
    assert!(cache.get(&Key::new("default", "c")).is_some());
}
