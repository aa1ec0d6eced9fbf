use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};

use super::{
    object_watch::{Freshness, ObjectWatch, ObjectWatches},
    *,
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

/// An API with one ConfigMap, and the paths of its requests.
#[derive(Clone, Default)]
struct FakeApi {
    asked: Arc<Mutex<Vec<String>>>,
    /// The number of requests that it denies first.
    refuses: usize,
}

impl FakeApi {
    fn refusing(refuses: usize) -> Self {
        Self { refuses, ..Self::default() }
    }

    fn asked(&self, what: &str) -> usize {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|path| path.contains(what)).count()
    }

    fn client(&self, map: Value) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (api, map, path) = (api.clone(), map.clone(), request.uri().to_string());
            async move {
                let times = {
                    let mut asked = api.asked.lock().unwrap_or_else(PoisonError::into_inner);
                    asked.push(path.clone());
                    asked.len()
                };
                if times <= api.refuses {
                    let answer =
                        json!({"kind": "Status", "code": 403, "message": "no relationship found between node"});
                    let answer = http::Response::builder().status(403).body(Full::new(Bytes::from(answer.to_string())));
                    return Ok::<_, Infallible>(answer.unwrap_or_default());
                }
                if path.contains("sendInitialEvents=") {
                    // A server without streaming lists, so that there is a list to count.
                    let answer = json!({"kind": "Status", "status": "Failure", "code": 422, "message": "sendInitialEvents is forbidden"});
                    let answer = http::Response::builder().status(422).body(Full::new(Bytes::from(answer.to_string())));
                    return Ok(answer.unwrap_or_default());
                }
                let answer = if path.contains("watch=") {
                    // Nothing changes.
                    std::future::pending().await
                } else if path.contains("configmaps?") {
                    json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": [map]})
                } else {
                    map
                };
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(answer.to_string()))))
            }
        });
        Client::new(service, "n")
    }
}

fn map(immutable: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n", "resourceVersion": "3"},
        "data": {"a": "1"}, "immutable": immutable})
}

fn first(pod: &Pod) -> &Volume {
    volumes_of(pod).next().unwrap()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn one_edit_is_not_a_request_for_each_pod() {
    let (dir, api) = (tempfile::tempdir().unwrap(), FakeApi::default());
    let client = api.client(map(false));
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
    assert_eq!(api.asked("configmaps/m"), 0, "the watch that starts with a pod delivers the state");
    // The state of a watch that is older than the pod may be stale.
    let late = watches.watch(&reference);
    volumes.prepare(&pods[0], first(&pods[0]), None, &contents(&late, Freshness::Live)).await.unwrap();
    assert_eq!(api.asked("configmaps/m"), 1, "a new pod has what there is now");
    // Of concurrent reads, the first is sent, and then one for all that came meanwhile.
    let many = (0..20).map(|_| contents(&late, Freshness::Live));
    let reads = many.map(|contents| async move { contents.config_map("n", "m").await });
    for read in futures::future::join_all(reads).await {
        assert!(read.unwrap().is_some());
    }
    assert_eq!(api.asked("configmaps/m"), 3, "not one request for each");
    for (pod, watch) in pods.iter().zip(&interests).chain([(&pods[0], &late)]) {
        volumes.prepare(pod, first(pod), None, &contents(watch, Freshness::Watched)).await.unwrap();
    }
    assert_eq!(api.asked("configmaps/m"), 3);
    // An object that is not watched is read.
    let unwatched = ObjectReader::new(client.clone(), BTreeMap::new(), Freshness::Watched);
    volumes.prepare(&pods[0], first(&pods[0]), None, &unwatched).await.unwrap();
    assert_eq!(api.asked("configmaps/m"), 4);
}

/// The Node authorizer lags behind a new binding: the volume is set up as soon as it has caught up, without an error.
#[tokio::test(start_paused = true)]
async fn a_lagging_authorizer_is_no_failure() {
    for (refusals, good) in [(0, true), (4, true), (1000, false)] {
        let api = FakeApi::refusing(refusals);
        let watches = ObjectWatches::new(api.client(map(false)));
        let reference = ObjectRef { kind: Kind::ConfigMap, namespace: "n".into(), name: "m".into() };
        let watched = BTreeMap::from([(reference.clone(), watches.watch(&reference))]);
        let contents = ObjectReader::new(api.client(map(false)), watched, Freshness::Live);
        assert_eq!(contents.config_map("n", "m").await.is_ok(), good, "{refusals}");
    }
}

#[tokio::test]
async fn what_is_immutable_is_watched_no_longer() {
    for (immutable, lists) in [(true, 2), (false, 1)] {
        let api = FakeApi::default();
        let watches = ObjectWatches::new(api.client(map(immutable)));
        let reference = ObjectRef { kind: Kind::ConfigMap, namespace: "n".into(), name: "m".into() };
        let first = watches.watch(&reference);
        until("the object is delivered", || first.watched.has_synced()).await;
        let has_watch = || api.asked("watch=") > api.asked("sendInitialEvents=");
        until("the watch has ended, or goes on", || if immutable { first.watched.is_finished() } else { has_watch() })
            .await;
        assert_eq!(has_watch(), !immutable);
        // It may have been recreated since: another pod watches again.
        let second = watches.watch(&reference);
        until("the object is delivered", || second.watched.has_synced()).await;
        assert_eq!(api.asked("configmaps?") - api.asked("watch="), lists);
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
