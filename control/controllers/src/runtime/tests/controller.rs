//! Controllers that panic are made again, alone.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, ResourceExt as _, api::PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use windlass_kit::{metrics::Registry, prometheus::Format};
use windlass_test_api::TestApi;

use crate::runtime::{Context, Controller, Controllers, Error, Key, Outcome};

/// What all instances of a controller have seen.
#[derive(Default)]
struct Seen {
    instances: AtomicUsize,
    /// Instance and object, of handlers and of reconciliations.
    heard: Mutex<BTreeSet<(usize, String)>>,
    reconciled: Mutex<BTreeSet<(usize, String)>>,
    /// The object whose handler and the one whose reconciliation panics in the first instance.
    traps: (&'static str, &'static str),
}

struct Probe<const SHAKY: bool> {
    instance: usize,
    seen: Arc<Seen>,
}

impl<const SHAKY: bool> Controller for Probe<SHAKY> {
    const NAME: &'static str = if SHAKY { "shaky" } else { "steady" };
    type Key = Key;
    type Config = Arc<Seen>;

    fn subscribe(context: &mut Context<Key>, seen: Arc<Seen>) -> Self {
        let instance = seen.instances.fetch_add(1, Ordering::SeqCst);
        let (queue, heard) = (context.queue(), Arc::clone(&seen));
        context.informer::<ConfigMap>().on_change(move |_, new| {
            let Some(object) = new else { return };
            assert!(instance > 0 || !SHAKY || object.name_any() != heard.traps.0, "a test panics");
            heard.heard.lock().insert((instance, object.name_any()));
            queue.add(Key::of(&object.metadata));
        });
        Self { instance, seen }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        assert!(self.instance > 0 || !SHAKY || key.name != self.seen.traps.1, "a test panics");
        self.seen.reconciled.lock().insert((self.instance, key.name));
        Ok(Outcome::Done)
    }
}

/// Makes objects `a`, `trap` and `b`, and runs two controllers until both have reconciled all.
async fn run(traps: (&'static str, &'static str)) -> (Arc<Seen>, Arc<Seen>, String) {
    let server = TestApi::new().await;
    let (client, shutdown, registry) = (server.client(), CancellationToken::new(), Registry::default());
    let (shaky, steady) = (Arc::new(Seen { traps, ..Seen::default() }), Arc::new(Seen::default()));
    let mut controllers = Controllers::new(client.clone(), None, &registry, shutdown.clone());
    controllers.add::<Probe<true>>(Arc::clone(&shaky));
    controllers.add::<Probe<false>>(Arc::clone(&steady));
    let running = tokio::spawn(controllers.run());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "n");
    for name in ["a", "trap", "b"] {
        let object: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Longer than the first delay before a restart.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let page = registry.page(Format::Plain);
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap();
    (shaky, steady, page)
}

fn of(set: &Mutex<BTreeSet<(usize, String)>>, instance: usize) -> String {
    set.lock().iter().filter(|(i, _)| *i == instance).map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_reconciliation_restarts_that_controller_alone() {
    let (shaky, steady, page) = run(("", "trap")).await;
    assert_eq!((shaky.instances.load(Ordering::SeqCst), steady.instances.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(of(&shaky.reconciled, 0), "a");
    assert_eq!(of(&shaky.heard, 0), "a trap", "its handlers end with it");
    assert_eq!((of(&shaky.heard, 1), of(&shaky.reconciled, 1)), ("a b trap".into(), "a b trap".into()));
    assert_eq!(of(&steady.reconciled, 0), "a b trap");
    for line in ["workqueue_adds_total{name=\"steady\"} 3", "workqueue_depth{name=\"shaky\"} 0"] {
        assert!(page.lines().any(|l| l == line), "{line} is missing from\n{page}");
    }
    assert!(page.contains("windlass_informer_objects{resource=\"configmaps\"} 3\n"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_handler_restarts_its_controller_and_not_the_informer() {
    let (shaky, steady, _) = run(("trap", "")).await;
    assert_eq!((shaky.instances.load(Ordering::SeqCst), steady.instances.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(of(&shaky.heard, 0), "a");
    assert_eq!((of(&shaky.heard, 1), of(&shaky.reconciled, 1)), ("a b trap".into(), "a b trap".into()));
    assert_eq!((of(&steady.heard, 0), of(&steady.reconciled, 0)), ("a b trap".into(), "a b trap".into()));
}
