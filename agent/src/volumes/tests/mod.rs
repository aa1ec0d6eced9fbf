mod api_faults;

use std::time::Duration;

use http::Method;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use windlass_control::in_memory::InMemory;
use windlass_tests::api_faults::{Faults, Purpose};

use super::{
    object_watch::{Freshness, ObjectWatch, ObjectWatches},
    *,
};
use crate::{
    test_api::{self, NODE, of_node},
    testing::until,
};

#[test]
fn an_unknown_kind_is_named() {
    for (source, kind) in [
        (r#""rbd":{"image":"i","monitors":[]}"#, "rbd"),
        (r#""csi":{"driver":"d"}"#, "csi"),
        (r#""gitRepo":{"repository":"r"}"#, "gitRepo"),
    ] {
        let volume: Volume = serde_json::from_str(&format!(r#"{{"name":"v",{source}}}"#)).unwrap();
        assert_eq!((kind_of(&volume).as_str(), projected::plugin(&volume)), (kind, None));
    }
}

fn map(immutable: bool) -> Value {
    json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"a": "1"}, "immutable": immutable})
}

/// A pod of the node that uses the ConfigMap `m`.
fn pod_of_node() -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": NODE,
        "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "configMap": {"name": "m"}}]}})
}

/// The real API server with a node and a ConfigMap, but without pods.
async fn server_with(map: Value) -> InMemory {
    let server = test_api::server();
    server.put("namespaces", json!({"metadata": {"name": "n"}})).await;
    server.put("nodes", json!({"metadata": {"name": NODE}})).await;
    server.put("configmaps", map).await;
    server
}

fn reference() -> ObjectRef {
    ObjectRef { kind: Kind::ConfigMap, namespace: "n".into(), name: "m".into() }
}

fn first(pod: &Pod) -> &Volume {
    volumes_of(pod).next().unwrap()
}

#[tokio::test]
async fn one_edit_is_not_a_request_for_each_pod() {
    let (dir, server) = (tempfile::tempdir().unwrap(), server_with(map(false)).await);
    server.put("pods", pod_of_node()).await;
    let faults = Faults::default();
    let client = of_node(&server, &faults);
    let reads = || faults.requests(&Method::GET, "configmaps");
    let socket = dir.path().join("docker.sock");
    let _docker = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let engine = Engine::new(&socket.to_string_lossy(), Arc::default()).unwrap();
    let volumes =
        Volumes::new(dir.path().join("pods"), "node".into(), client.clone(), engine, BTreeMap::new(), Arc::default());
    let pods: Vec<Pod> = (0..20)
        .map(|n| {
            let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": format!("u{n}")}, "spec": {"containers": [],
                "volumes": [{"name": "v", "configMap": {"name": "m"}}]}});
            serde_json::from_value(pod).unwrap()
        })
        .collect();
    let reference = Volumes::references(&pods[0]).remove(0);
    let watches = ObjectWatches::new(client.clone());
    let interests: Vec<_> = pods.iter().map(|_| watches.watch(&reference)).collect();
    let contents = |watch: &ObjectWatch, freshness| {
        ObjectReader::new(client.clone(), BTreeMap::from([(reference.clone(), watch.clone())]), freshness)
    };
    for (pod, watch) in pods.iter().zip(&interests) {
        let made = volumes.prepare(pod, first(pod), None, &contents(watch, Freshness::Live)).await.unwrap();
        assert_eq!(std::fs::read_to_string(made.place.path.join("a")).unwrap(), "1");
    }
    assert_eq!(reads(), 0, "the watch that starts with a pod delivers the state");
    // The state of a watch that is older than the pod may be stale.
    let late = watches.watch(&reference);
    volumes.prepare(&pods[0], first(&pods[0]), None, &contents(&late, Freshness::Live)).await.unwrap();
    assert_eq!(reads(), 1, "a new pod has what there is now");
    // Of concurrent reads, the first is sent, and then one for all that came meanwhile.
    let many = (0..20).map(|_| contents(&late, Freshness::Live));
    let all = many.map(|contents| async move { contents.config_map("n", "m").await });
    for read in futures::future::join_all(all).await {
        assert!(read.unwrap().is_some());
    }
    assert_eq!(reads(), 3, "not one request for each");
    for (pod, watch) in pods.iter().zip(&interests).chain([(&pods[0], &late)]) {
        volumes.prepare(pod, first(pod), None, &contents(watch, Freshness::Watched)).await.unwrap();
    }
    assert_eq!(reads(), 3);
    // An object that is not watched is read.
    let unwatched = ObjectReader::new(client.clone(), BTreeMap::new(), Freshness::Watched);
    volumes.prepare(&pods[0], first(&pods[0]), None, &unwatched).await.unwrap();
    assert_eq!(reads(), 4);
}

/// The Node authorizer hears of a new binding after the node: the volume is set up as soon as it knows, without an error.
#[tokio::test(start_paused = true)]
async fn a_lagging_authorizer_is_no_failure() {
    for (known_after, good) in [(Some(0), true), (Some(1500), true), (None, false)] {
        let server = server_with(map(false)).await;
        let pods: Api<Pod> = Api::namespaced(test_api::user(&server), "n");
        let client = of_node(&server, &Faults::default());
        let watched = BTreeMap::from([(reference(), ObjectWatches::new(client.clone()).watch(&reference()))]);
        let contents = ObjectReader::new(client, watched, Freshness::Live);
        let binding = async {
            let Some(after) = known_after else { return };
            tokio::time::sleep(Duration::from_millis(after)).await;
            pods.create(&PostParams::default(), &serde_json::from_value(pod_of_node()).unwrap()).await.unwrap();
        };
        let (read, ()) = tokio::join!(contents.config_map("n", "m"), binding);
        assert_eq!(read.is_ok(), good, "{known_after:?}: {read:?}");
    }
}

#[tokio::test]
async fn what_is_immutable_is_watched_no_longer() {
    for (immutable, times) in [(true, 2), (false, 1)] {
        let server = server_with(map(immutable)).await;
        server.put("pods", pod_of_node()).await;
        let faults = Faults::default();
        let watches = ObjectWatches::new(of_node(&server, &faults));
        let first = watches.watch(&reference());
        until("the object is delivered", || first.watched.has_synced()).await;
        if immutable {
            until("the watch has ended", || first.watched.is_finished()).await;
        }
        // It may have been recreated since: another pod watches again.
        let second = watches.watch(&reference());
        until("the object is delivered", || second.watched.has_synced()).await;
        assert_eq!(first.watched.is_finished(), immutable);
        assert_eq!(faults.calls().made.iter().filter(|purpose| **purpose == Purpose::Watch).count(), times);
    }
}

#[test]
fn names_that_are_no_names_of_directories_are_refused() {
    for (name, is) in
        [("v", true), ("..v", true), ("", false), (".", false), ("..", false), ("a/b", false), ("/a", false)]
    {
        assert_eq!(is_dir_name(name), is, "{name}");
    }
}
