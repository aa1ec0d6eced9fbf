use std::sync::Mutex;

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

fn object(name: &str, uid: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some("default".into());
    object.metadata.name = Some(name.into());
    object.metadata.uid = Some(uid.into());
    object.metadata.resource_version = Some(version.into());
    object
}

fn informer() -> (Informer<ConfigMap>, Arc<Mutex<Vec<String>>>) {
    let mut informer = Informer::new(trim_metadata);
    let changes = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&changes);
    informer.on_change(move |old, new| {
        let part = |o: Option<&Arc<ConfigMap>>| o.map_or("-".into(), |o| o.uid().unwrap_or_default());
        log.lock().unwrap().push(format!("{}>{}", part(old), part(new)));
    });
    (informer, changes)
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
    assert_eq!(*changes.lock().unwrap(), ["->1", "->2", "2>2", "1>-", "2>-", "->3", "->4"]);
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

    // The object came and went while the watch was broken: the next list tells.
    let point = cache.sync_point(Some("30"));
    informer.apply(watcher::Event::Init, &mut listed);
    assert!(!cache.reached(point));
    informer.apply(watcher::Event::InitDone, &mut listed);
    assert!(cache.reached(point));
}
