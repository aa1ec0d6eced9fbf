//! No pod has a link before the rules of NetworkPolicies are in force for it.

use windlass_kit::announced_pod::{Announcement, Announcements, channel};

use super::*;

/// Whether a pod has its link.
fn has_link(uid: &str) -> bool {
    Command::new("ip").args(["link", "show", &host_interface(uid)]).output().unwrap().status.success()
}

async fn started(
    announcements: &mut Announcements,
) -> (windlass_kit::announced_pod::AnnouncedPod, tokio::sync::oneshot::Sender<Result<(), String>>) {
    match announcements.recv().await {
        Some(Announcement::Starts(pod, reply)) => (pod, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_is_connected_when_its_rules_are_in_force() {
    in_own_namespace(|| async {
        let dir = tempfile::tempdir().unwrap();
        let (announcer, mut announcements) = channel();
        let config = NetworkConfig { dir: dir.path().to_owned(), cluster_cidrs: vec![cidr(PODS)] };
        let network = Network::routed(config, Some(announcer));
        network.use_ranges(&[cidr(PODS)]).await.unwrap();
        let process = sandbox().await;
        let addresses = network.allocate("pod").await.unwrap();
        let attach = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let request = Attach { labels, ..request("pod", &process, &addresses, &[]) };
            let network = network.clone();
            tokio::spawn(async move { network.attach(request).await })
        };

        // Rules that cannot be written: the pod is not connected.
        let attaching = attach(&[("app", "web")]);
        let (pod, reply) = started(&mut announcements).await;
        assert_eq!((pod.uid.as_str(), pod.namespace.as_str(), &pod.addresses), ("pod", "default", &addresses));
        assert_eq!(pod.labels["app"], "web");
        assert!(!has_link("pod") && !attaching.is_finished());
        reply.send(Err("the kernel has no sets".to_owned())).unwrap();
        let error = attaching.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("the kernel has no sets") && !has_link("pod"), "{error}");

        // Nobody answers any more.
        let attaching = attach(&[]);
        drop(started(&mut announcements).await);
        assert!(attaching.await.unwrap().is_err() && !has_link("pod"));

        let attaching = attach(&[]);
        let (_, reply) = started(&mut announcements).await;
        assert!(!has_link("pod"));
        reply.send(Ok(())).unwrap();
        assert_eq!(attaching.await.unwrap().unwrap(), addresses);
        assert!(has_link("pod"));

        // A pod with a link is announced, by a new process, and need not wait: its rules are there.
        let attaching = attach(&[]);
        let (_, _reply) = started(&mut announcements).await;
        assert_eq!(attaching.await.unwrap().unwrap(), addresses);
        network.detach("pod").await.unwrap();
        assert!(matches!(announcements.recv().await, Some(Announcement::Ended(uid)) if uid == "pod"));
    });
}
