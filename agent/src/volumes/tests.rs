use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};

use super::{
    follow::{Follower, Following, Need},
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
        assert_eq!((kind_of(&volume).as_str(), content::plugin(&volume)), (kind, None));
    }
}

/// An API that has one ConfigMap, and the paths that it was asked for.
#[derive(Clone, Default)]
struct FakeApi {
    asked: Arc<Mutex<Vec<String>>>,
    /// How many requests it refuses first.
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
    let following = Following::new(client.clone());
    let followers: Vec<_> = pods.iter().map(|_| following.follow(&reference)).collect();
    let contents = |follower: &Follower, need| {
        Contents::new(client.clone(), BTreeMap::from([(reference.clone(), follower.clone())]), need)
    };
    for (pod, follower) in pods.iter().zip(&followers) {
        let made = volumes.prepare(pod, &VolumeImages::default(), &contents(follower, Need::Now)).await.unwrap();
        assert_eq!(std::fs::read_to_string(made.places["v"].path.join("a")).unwrap(), "1");
    }
    assert_eq!(api.asked("configmaps/m"), 0, "the watch that begins with a pod tells it what there is");
    // What the watch told before a pod came may be old by now.
    let late = following.follow(&reference);
    volumes.prepare(&pods[0], &VolumeImages::default(), &contents(&late, Need::Now)).await.unwrap();
    assert_eq!(api.asked("configmaps/m"), 1, "a new pod has what there is now");
    // The first of many that come at once asks, and then one for all who came meanwhile.
    let many = (0..20).map(|_| contents(&late, Need::Now));
    let reads = many.map(|contents| async move { contents.config_map("n", "m").await });
    for read in futures::future::join_all(reads).await {
        assert!(read.unwrap().is_some());
    }
    assert_eq!(api.asked("configmaps/m"), 3, "not one request for each");
    for (pod, follower) in pods.iter().zip(&followers).chain([(&pods[0], &late)]) {
        volumes.refresh(pod, &contents(follower, Need::Told)).await.unwrap();
    }
    assert_eq!(api.asked("configmaps/m"), 3);
    // Of one that is not watched there is nothing at hand.
    volumes.refresh(&pods[0], &Contents::new(client.clone(), BTreeMap::new(), Need::Told)).await.unwrap();
    assert_eq!(api.asked("configmaps/m"), 4);
}

/// An API server that learns late that the pod is this node's: the volume is there as soon as it has, and nobody hears of it.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_moment_is_no_failure() {
    for (refusals, good) in [(0, true), (4, true), (1000, false)] {
        let api = FakeApi::refusing(refusals);
        let following = Following::new(api.client(map(false)));
        let reference = Reference { kind: Kind::ConfigMap, namespace: "n".into(), name: "m".into() };
        let followed = BTreeMap::from([(reference.clone(), following.follow(&reference))]);
        let contents = Contents::new(api.client(map(false)), followed, Need::Now);
        assert_eq!(contents.config_map("n", "m").await.is_ok(), good, "{refusals}");
    }
}

#[tokio::test]
async fn what_is_immutable_is_watched_no_longer() {
    for (immutable, lists) in [(true, 2), (false, 1)] {
        let api = FakeApi::default();
        let following = Following::new(api.client(map(immutable)));
        let reference = Reference { kind: Kind::ConfigMap, namespace: "n".into(), name: "m".into() };
        let first = following.follow(&reference);
        until("the object is told", || first.followed.has_told()).await;
        let watches = || api.asked("watch=") > 0;
        until("the watch has ended, or goes on", || if immutable { first.followed.has_ended() } else { watches() })
            .await;
        assert_eq!(watches(), !immutable);
        // It may have been deleted and made anew since: another pod asks again.
        let second = following.follow(&reference);
        until("the object is told", || second.followed.has_told()).await;
        assert_eq!(api.asked("configmaps?") - api.asked("watch="), lists);
    }
}

#[test]
fn names_that_are_no_names_of_folders_are_refused() {
    for (name, is) in
        [("v", true), ("..v", true), ("", false), (".", false), ("..", false), ("a/b", false), ("/a", false)]
    {
        assert_eq!(is_folder_name(name), is, "{name}");
    }
}
