//! What the rest of the agent observes of the container engine: the running containers of all pods, and the runtimes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{mpsc, watch};
use windlass_cadvisor::Target;
use windlass_kit::published_map::Publisher;

use crate::{engine::containers::Info, pods::steps::context::RunningOfPod};

/// Changes within this time are published together: pods often change at once, and each change is a snapshot of usage.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Publishes the names of Docker's runtimes.
pub(super) async fn publish_runtimes(mut info: watch::Receiver<Info>, tx: watch::Sender<Arc<BTreeSet<String>>>) {
    while info.changed().await.is_ok() {
        tx.send_replace(Arc::new(info.borrow_and_update().runtimes.clone()));
    }
}

/// Publishes the running containers of all pods, as their workers report them: what has changed of a pod, and nothing of
/// the others.
pub(super) async fn publish_running(
    mut running: mpsc::Receiver<RunningOfPod>,
    publisher: Publisher<Arc<str>, Arc<Target>>,
) {
    let mut by_pod: HashMap<String, Vec<Arc<str>>> = HashMap::new();
    while let Some(first) = running.recv().await {
        tokio::time::sleep(DEBOUNCE).await;
        let mut next = Some(first);
        while let Some((uid, targets)) = next {
            let ids: Vec<Arc<str>> = targets.iter().map(|target| Arc::from(target.container_id.as_str())).collect();
            let before = by_pod.remove(&uid).unwrap_or_default();
            before.iter().filter(|id| !ids.contains(id)).for_each(|gone| publisher.remove(gone));
            for (id, target) in ids.iter().zip(targets) {
                publisher.set(Arc::clone(id), target);
            }
            if !ids.is_empty() {
                by_pod.insert(uid, ids);
            }
            next = running.try_recv().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_changes_of_a_pod_is_told_alone() {
        let (tx, rx) = mpsc::channel(8);
        let publisher = Publisher::default();
        let running = publisher.subscribe();
        let mut follower = running.follow();
        let task = tokio::spawn(publish_running(rx, publisher));
        let target = |id: &str| Arc::new(Target { container_id: id.to_owned(), ..Target::default() });
        let (a, b) = (target("a"), target("b"));
        tx.send(("u".to_owned(), vec![Arc::clone(&a), b])).await.unwrap();
        tx.send(("v".to_owned(), vec![target("c")])).await.unwrap();
        let mut all = follower.changed().await.unwrap();
        while all.len() < 3 {
            all.extend(follower.changed().await.unwrap());
        }
        assert!(running.get("a").is_some_and(|known| Arc::ptr_eq(&known, &a)), "as the worker made it");
        tx.send(("u".to_owned(), vec![target("a"), target("d")])).await.unwrap();
        let mut changed = follower.changed().await.unwrap();
        while changed.len() < 2 {
            changed.extend(follower.changed().await.unwrap());
        }
        let told: Vec<(&str, bool)> = changed.iter().map(|(id, target)| (&**id, target.is_some())).collect();
        assert_eq!(told, [("b", false), ("d", true)], "what is equal stays");
        tx.send(("u".to_owned(), Vec::new())).await.unwrap();
        drop(tx);
        task.await.unwrap();
        let left: Vec<String> = running.values().iter().map(|target| target.container_id.clone()).collect();
        assert_eq!((left, running.is_closed()), (vec!["c".to_owned()], true));
    }
}
