//! One task per pod: it alone knows what runs of the pod, decides by [`plan`](super::plan) and writes
//! the pod's status.

mod acts;
mod counted;
mod obey;
mod outcomes;
mod resizing;
mod told;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{FuturesUnordered, SelectAll},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kube::api::{Api, Patch, PatchParams};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    backoff::{Backoff, delay_after},
    events::Severity,
};

use super::{
    admission::Claim,
    allocated::Allocated,
    clock::{Clock, moved, understood},
    handlers::Answer,
    observed::{BACKOFF_BASE, BACKOFF_CAP, Failure, ImageState, Observed, later},
    orders::{self, Ended, Order},
    outcome::{NETWORK_NOT_READY, Outcome, Refusal},
    plan::{Action, Key, Plan, Wanted, plan},
    probes::{self, Kind},
    report::{can_wait, gathers_until, merge, patch_of, record, version},
    resize::{self, Verdict},
    shared::Shared,
    silence::FirstProcess,
    spec, status, steps,
};
use crate::{
    ContainerRecord, STUCK_AFTER,
    engine::{
        calls::Listed,
        events::{self, Changed},
        instance::{Exit, Instance, State},
    },
    network::Readiness,
    volumes::{
        Place, Volumes,
        follow::{Follower, Kind as ObjectKind, Reference},
    },
};

/// What the dispatcher wants of a worker.
#[derive(Debug, Clone)]
pub(crate) enum Wish {
    /// The API's latest word, and when the list began that it belongs to, with the watch after it.
    Pod { pod: Arc<Pod>, list: Option<Instant> },
    /// A pod of the node's own folder, and its image in the API.
    Static { pod: Arc<Pod>, mirror: Option<Arc<Pod>> },
    /// The pod vanished from the API.
    Gone,
}

/// What happened in Docker.
#[derive(Debug)]
pub(crate) enum News {
    Changed(Changed),
    /// All that Docker has of this pod, after events may have been lost.
    Listed(Vec<Listed>),
    /// The disk is short: what a pod that is over has left may go.
    DropDead,
}

/// How a worker ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing is left of the pod.
    Finished,
    /// The agent ends; the pod goes on.
    Shutdown,
}

/// A retry after Docker did not answer: nothing is wrong with the pod, so it comes soon.
const UNREACHABLE_RETRY: Duration = Duration::from_secs(1);
/// A retry of reading or writing the API.
const API_RETRY: Duration = Duration::from_secs(1);
/// The next look at resources that there was no room for.
const DEFERRED_RETRY: Duration = Duration::from_secs(5);
/// The next try of writing what volumes hold.
const CONTENTS_RETRY: Duration = Duration::from_secs(60);
/// The next try of a status that the API takes and does not keep.
const STUCK_RETRY: Duration = Duration::from_secs(30);

pub(crate) struct Worker {
    shared: Arc<Shared>,
    uid: String,
    pod: Option<Arc<Pod>>,
    /// The list that the pod is of, or whose watch has told it.
    list: Option<Instant>,
    /// When the API last answered with the pod itself.
    answered_at: Option<Instant>,
    /// Of a static pod: its image in the API, where its status is shown.
    mirror: Option<Arc<Pod>>,
    gone: bool,
    observed: Observed,
    volumes: Arc<BTreeMap<String, Place>>,
    steps: FuturesUnordered<BoxFuture<'static, (Key, Outcome)>>,
    /// Containers that changed while they were looked at: the look may have been before.
    look_again: BTreeSet<String>,
    /// Of the steps under way those that can be given up, each with what tells them.
    given_up: BTreeMap<Key, CancellationToken>,
    /// The ConfigMaps and Secrets that the pod is made of.
    followed: BTreeMap<Reference, Follower>,
    changes: SelectAll<WatchStream<u64>>,
    published: Vec<ContainerRecord>,
    patch_after: Option<Timestamp>,
    /// Since when a change of the status that nobody waits for waits for others.
    gathers_since: Option<Timestamp>,
    /// Statuses that the API has refused in a row, since it last told something of the pod.
    refused: Backoff,
    /// Why the API holds a status to be invalid, as was said last.
    told_invalid: Option<String>,
    /// When a wish for resources that was put off is judged again.
    judge_at: Option<Timestamp>,
    /// The pod holds nothing of the node any more.
    released: bool,
    /// When the wish was first put off.
    put_off_at: Option<Timestamp>,
    clock: Clock,
    /// The machine's clock was set while this worker was there.
    clock_was_set: bool,
    /// Until the pod has run through its start, how it goes; `None` for one that was found running.
    start: Option<counted::Start>,
    /// Docker did not answer: nothing is begun before then.
    pause_until: Option<Timestamp>,
    /// Those who ordered the pod's end, each with how long it waits.
    waiting: Vec<(oneshot::Sender<orders::Answer>, Timestamp)>,
}

impl Worker {
    /// A worker that finds `instances` in Docker: empty for a new pod, which the node may have refused: then it has `ended`.
    pub(crate) fn new(shared: Arc<Shared>, uid: String, instances: Vec<Instance>, ended: Option<Ended>) -> Self {
        let start = instances.is_empty().then(counted::Start::new);
        let found_at = (!instances.is_empty()).then(Timestamp::now);
        let mut observed = Observed { ended, found_at, ..Observed::default() };
        for instance in instances {
            let instance = super::traces::with_written_message(&shared, instance);
            observed.put(understood(instance, None, false, Timestamp::now()));
        }
        // A sandbox that runs was connected by whoever started it; that is made sure of below.
        observed.attached =
            observed.instances.iter().filter(|i| i.is_sandbox() && i.is_running()).map(|i| i.id.clone()).collect();
        observed.addresses = observed.sandbox().map(|s| s.addresses.clone()).unwrap_or_default();
        if observed.addresses.is_empty() {
            observed.addresses = shared.network.addresses_of(&uid);
        }
        // Their hooks were run by whoever started them.
        observed.hooked = observed.instances.iter().filter(|i| i.is_running()).map(|i| i.id.clone()).collect();
        Self {
            shared,
            uid,
            pod: None,
            list: None,
            answered_at: None,
            mirror: None,
            gone: false,
            observed,
            volumes: Arc::default(),
            steps: FuturesUnordered::new(),
            look_again: BTreeSet::new(),
            given_up: BTreeMap::new(),
            followed: BTreeMap::new(),
            changes: SelectAll::new(),
            published: Vec::new(),
            patch_after: None,
            gathers_since: None,
            refused: Backoff::new(API_RETRY, STUCK_RETRY),
            told_invalid: None,
            judge_at: None,
            put_off_at: None,
            pause_until: None,
            released: false,
            clock: Clock::new(),
            clock_was_set: false,
            start,
            waiting: Vec::new(),
        }
    }

    /// Runs until nothing is left of the pod, or the agent ends.
    pub(crate) async fn run(
        mut self,
        mut wish: watch::Receiver<Wish>,
        mut news: mpsc::Receiver<News>,
        mut orders: mpsc::UnboundedReceiver<Order>,
        shutdown: CancellationToken,
    ) -> End {
        self.take_wish(&wish.borrow_and_update().clone());
        self.reconnect();
        let mut health = self.shared.health.clone();
        let mut freed = self.shared.freed.subscribe();
        let mut network = self.shared.network.readiness();
        let heart = self.shared.heartbeats.begin("pod worker", self.uid.clone(), STUCK_AFTER);
        loop {
            heart.beat();
            let now = self.now();
            let mut wake_at = self.begin(now);
            if let Some(at) = self.write_status(now) {
                wake_at = Some(wake_at.map_or(at, |earlier| earlier.min(at)));
            }
            wake_at = wake_at.into_iter().chain(self.answer(now)).min();
            self.publish().await;
            if self.is_finished() {
                self.shared.hold(&self.uid, None);
                let _ = self.shared.inventory.send((self.uid.clone(), Vec::new())).await;
                heart.end();
                return End::Finished;
            }
            let sleep = async {
                match wake_at {
                    Some(at) => tokio::time::sleep(until(at)).await,
                    None => std::future::pending().await,
                }
            };
            // Until something happens to the pod nothing is to be done.
            heart.rest();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return End::Shutdown,
                Some((key, outcome)) = self.steps.next(), if !self.steps.is_empty() => {
                    self.observed.in_flight.remove(&key);
                    self.given_up.remove(&key);
                    self.count(&outcome);
                    self.take(outcome);
                    if let Key::Look(id) = key
                        && self.look_again.remove(&id)
                    {
                        self.look(id);
                    }
                }
                changed = wish.changed() => match changed {
                    Ok(()) => { let latest = wish.borrow_and_update().clone(); self.take_wish(&latest); }
                    Err(_) => return End::Shutdown,
                },
                Some(order) = orders.recv() => self.obey(order),
                Some(item) = news.recv() => self.hear(item),
                Some(_) = self.changes.next(), if !self.changes.is_empty() => self.contents_changed(),
                changed = health.changed() => {
                    if changed.is_ok() && self.shared.docker_answers() { self.pause_until = None; }
                }
                changed = network.changed(), if self.waits_for_network() => {
                    if changed.is_ok() && *network.borrow_and_update() == Readiness::Ready { self.retry_sandbox(); }
                }
                _ = freed.changed(), if matches!(self.observed.resize, Some(Verdict::Deferred(_))) => self.judge_at = None,
                () = sleep => {}
            }
        }
    }

    /// Whether the pod could not be connected because the node's network was not ready.
    fn waits_for_network(&self) -> bool {
        self.observed.sandbox_failure.as_ref().is_some_and(|failure| failure.reason == NETWORK_NOT_READY)
    }

    fn retry_sandbox(&mut self) {
        let now = self.now();
        if let Some(failure) = &mut self.observed.sandbox_failure {
            failure.retry_at = now;
        }
    }

    /// Whether nothing is left of the pod, neither on the node nor in the API.
    fn is_finished(&self) -> bool {
        let nobody_asks = self.observed.forgotten || (self.gone && self.observed.torn_down);
        nobody_asks && self.observed.instances.is_empty()
    }

    /// Whether the pod is to end for good.
    fn is_ending(&self) -> bool {
        self.gone || self.pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    /// The time. When the clock was set, all that is remembered moves along.
    fn now(&mut self) -> Timestamp {
        let (now, set) = self.clock.look();
        if let Some(by) = set {
            self.clock_was_set = true;
            self.observed.clock_was_set(by);
            let own = [
                &mut self.patch_after,
                &mut self.gathers_since,
                &mut self.judge_at,
                &mut self.put_off_at,
                &mut self.pause_until,
            ];
            let own = own.into_iter().flatten().chain(self.waiting.iter_mut().map(|(_, until)| until));
            own.for_each(|at| *at = moved(*at, by));
        }
        now
    }

    /// Takes in what Docker says of a container.
    fn put(&mut self, mut instance: Instance) {
        let now = self.now();
        if matches!(instance.state, State::Exited(_)) {
            self.give_up_hooks(&instance.id);
        }
        let known = self.observed.instances.iter().find(|i| i.id == instance.id);
        if let Some(user) = known.and_then(|k| k.user.as_ref()) {
            instance.user = Some(user.clone());
        }
        self.observed.put(understood(instance, known, self.clock_was_set, now));
    }

    fn take_wish(&mut self, wish: &Wish) {
        if self.refused.failures() > 0 {
            self.refused.reset();
            self.patch_after = None;
        }
        match wish {
            Wish::Gone => self.gone = true,
            Wish::Static { pod, mirror } => {
                self.mirror.clone_from(mirror);
                if self.pod.is_none() {
                    // What was told before our own restart counts: phases never go back.
                    let status = mirror.as_ref().and_then(|m| m.status.clone());
                    self.take_pod(&Arc::new(Pod { status, ..pod.as_ref().clone() }));
                }
            }
            Wish::Pod { pod, list } => {
                let relisted = std::mem::replace(&mut self.list, *list) != *list;
                let told = Told { relisted, after_answer: self.answered_at < *list };
                if let Some(pod) = successor(self.pod.as_ref(), pod, told) {
                    self.take_pod(&pod);
                }
            }
        }
    }

    /// Takes in what the API has answered to a write.
    fn take_answer(&mut self, pod: &Arc<Pod>) {
        if let Some(pod) = successor(self.pod.as_ref(), pod, Told::default()) {
            self.answered_at = Some(Instant::now());
            self.take_pod(&pod);
        }
    }

    fn take_pod(&mut self, pod: &Arc<Pod>) {
        if self.pod.is_none() {
            self.observed.logged = super::traces::logged_attempts(&self.shared.config, pod);
            self.learn_allocated(pod);
        }
        let metadata = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
        if self.pod.as_ref().is_some_and(|old| metadata(old) != metadata(pod)) {
            // Files of the downward API, and paths that come of an annotation.
            self.contents_changed();
        }
        let changed = self.pod.as_ref().is_some_and(|old| old.spec != pod.spec);
        if changed {
            // A new image must be looked up again, and a new wish for resources judged anew.
            self.observed.images.clear();
            self.observed.resize = None;
            self.put_off_at = None;
        }
        self.pod = Some(Arc::clone(pod));
        self.follow(pod);
    }

    /// Watches the objects that a pod is made of for as long as it lives.
    fn follow(&mut self, pod: &Pod) {
        let over = pod.metadata.deletion_timestamp.is_some() || spec::is_terminal(spec::phase(pod));
        let wanted = if over { Vec::new() } else { references(pod) };
        self.followed.retain(|reference, _| wanted.contains(reference));
        for reference in wanted {
            if let Entry::Vacant(free) = self.followed.entry(reference) {
                let followed = self.shared.following.follow(free.key());
                self.changes.push(WatchStream::from_changes(followed.changes()));
                free.insert(followed);
            }
        }
    }

    /// What the pod is made of changed: files are written anew, and what waited for it is tried at once.
    fn contents_changed(&mut self) {
        let now = self.now();
        self.observed.stale = Some(now);
        let waiting = self.observed.start_failures.values_mut().filter(|f| f.reason == "CreateContainerConfigError");
        waiting.chain(self.observed.volumes_failure.as_mut()).for_each(|failure| failure.retry_at = now);
    }

    fn wanted(&self) -> Option<Wanted<'_>> {
        if self.gone {
            let grace = self.observed.instances.iter().filter_map(|i| i.grace).max().unwrap_or(30);
            let deleted = self.pod.as_deref().and_then(spec::asked_grace);
            return Some(Wanted::Gone { grace: deleted.unwrap_or(grace), pod: self.pod.as_deref() });
        }
        self.pod.as_deref().map(Wanted::Run)
    }

    /// Starts what the plan says and gives when to look again.
    fn begin(&mut self, now: Timestamp) -> Option<Timestamp> {
        if let Some(at) = self.pause_until.filter(|at| *at > now) {
            return Some(at);
        }
        if !self.shared.docker_answers() {
            return None;
        }
        let judged_again = self.settle_resize(now);
        let Plan { actions, wake_at, ends } = match self.wanted() {
            Some(wanted) => plan(wanted, &self.observed, now),
            None => return None,
        };
        if ends {
            let over = self.given_up.iter().filter(|(key, _)| key.is_given_up_at_the_end());
            over.for_each(|(_, token)| token.cancel());
        }
        for action in actions {
            self.start(action);
        }
        wake_at.into_iter().chain(judged_again).min()
    }

    /// After our own restart: makes sure of the network of a sandbox that is taken over.
    fn reconnect(&mut self) {
        let wordless: Vec<String> =
            self.observed.instances.iter().filter(|i| super::traces::needs_log(i)).map(|i| i.id.clone()).collect();
        for id in wordless {
            self.look(id);
        }
        let Some(pod) = self.pod.clone().filter(|p| p.metadata.deletion_timestamp.is_none()) else { return };
        let Some(sandbox) = self.observed.sandbox().filter(|s| s.is_running()).cloned() else { return };
        if self.shared.docker_answers() {
            let key = Action::StartSandbox { id: sandbox.id.clone() }.key();
            self.push(key, steps::reconnect_sandbox(Arc::clone(&self.shared), pod, sandbox));
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Changed(Changed { id, action, .. }) => {
                let known = self.observed.instances.iter().find(|i| i.id == id);
                let told_already = match action {
                    events::Action::Started => known.is_some_and(Instance::is_running),
                    events::Action::Died => known.is_some_and(|i| matches!(i.state, State::Exited(_))),
                    events::Action::Destroyed => known.is_none(),
                };
                if action == events::Action::Died
                    && self.is_ending()
                    && let Some(sandbox) = known.filter(|i| i.is_sandbox() && i.is_running()).cloned()
                {
                    // How it ended tells nothing, and Docker is busy with its removal.
                    let state = State::Exited(Exit::killed(self.now()));
                    self.put(Instance { state, ..sandbox });
                    return;
                }
                // A step under way looks for itself when it is done, but may have looked before a death.
                let busy = self.observed.in_flight.contains(&Key::Container(id.clone()));
                if !told_already && (!busy || action == events::Action::Died) {
                    self.look(id);
                }
            }
            News::DropDead => self.observed.drop_dead = true,
            News::Listed(listed) => {
                let differs: Vec<String> = listed
                    .iter()
                    .filter(|l| {
                        self.observed
                            .instances
                            .iter()
                            .find(|i| i.id == l.id)
                            .is_none_or(|i| i.is_running() != l.running)
                    })
                    .map(|l| l.id.clone())
                    .collect();
                let vanished: Vec<String> = self
                    .observed
                    .instances
                    .iter()
                    .filter(|i| !listed.iter().any(|l| l.id == i.id))
                    .map(|i| i.id.clone())
                    .collect();
                for id in differs.into_iter().chain(vanished) {
                    self.look(id);
                }
            }
        }
    }

    fn look(&mut self, id: String) {
        let key = Key::Look(id.clone());
        if self.observed.in_flight.contains(&key) {
            self.look_again.insert(id);
        } else {
            self.push(key, steps::see(Arc::clone(&self.shared), id));
        }
    }
}

/// How the API came to tell of a pod.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// It is the first word of a list that is new to the worker.
    relisted: bool,
    /// That list was begun after the API last answered with the pod itself.
    after_answer: bool,
}

/// What is held of a pod after the API has told `new` of it; `None` where that is older than `old`. Versions can be
/// compared within one list and the watch that goes on from it. Another list is believed whatever its versions, since the
/// API may have been restored from a backup; but what ends goes on ending.
fn successor(old: Option<&Arc<Pod>>, new: &Arc<Pod>, told: Told) -> Option<Arc<Pod>> {
    let Some(old) = old else { return Some(Arc::clone(new)) };
    if version(new) >= version(old) {
        return Some(Arc::clone(new));
    }
    if !(told.relisted && told.after_answer) {
        return None;
    }
    let mut new = Arc::clone(new);
    if old.metadata.deletion_timestamp.is_some() && new.metadata.deletion_timestamp.is_none() {
        let pod = Arc::make_mut(&mut new);
        pod.metadata.deletion_timestamp.clone_from(&old.metadata.deletion_timestamp);
        pod.metadata.deletion_grace_period_seconds = old.metadata.deletion_grace_period_seconds;
    }
    Some(new)
}

/// The objects that a pod's volumes and environments are made of.
fn references(pod: &Pod) -> Vec<Reference> {
    let mut out = Volumes::references(pod);
    let namespace = spec::namespace(pod);
    let reference = |kind, name: &str| Reference { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    let mut add = |container: &Container| {
        let (maps, secrets) = super::env::references(container);
        out.extend(maps.into_iter().map(|name| reference(ObjectKind::ConfigMap, name)));
        out.extend(secrets.into_iter().map(|name| reference(ObjectKind::Secret, name)));
    };
    if let Some(spec) = &pod.spec {
        spec::all_containers(spec).for_each(|(container, _)| add(container));
        spec::ephemeral_containers(spec).iter().for_each(&mut add);
    }
    out
}

fn after(now: Timestamp, grace: i64) -> Timestamp {
    later(now, Duration::from_secs(u64::try_from(grace).unwrap_or(0)))
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(version: u64, image: &str, deleted: bool) -> Arc<Pod> {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "uid": "u", "resourceVersion": version.to_string()},
            "spec": {"containers": [{"name": "c", "image": image}]}}))
        .unwrap();
        if deleted {
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
            pod.metadata.deletion_grace_period_seconds = Some(5);
        }
        Arc::new(pod)
    }

    #[test]
    fn a_new_list_is_believed_whatever_its_versions() {
        let told = |relisted, after_answer| Told { relisted, after_answer };
        let image = |pod: &Pod| spec::image_of(&pod.spec.as_ref().unwrap().containers[0]).to_owned();
        let after = |old: u64, new: u64, told| successor(Some(&pod(old, "old", false)), &pod(new, "new", false), told);
        assert!(successor(None, &pod(1, "new", false), Told::default()).is_some());
        for (old, new, told, taken) in [
            (7, 8, Told::default(), true),
            (7, 7, Told::default(), true),
            (7, 6, Told::default(), false),
            // The API was restored from a backup.
            (7000, 6, told(true, true), true),
            (7000, 6, told(false, true), false),
            // The list was begun before the API answered with the pod itself: it may just be older.
            (7, 6, told(true, false), false),
            (7, 8, told(true, false), true),
        ] {
            let pod = after(old, new, told);
            assert_eq!(pod.as_deref().map(image), taken.then(|| "new".to_owned()), "{old} {new} {told:?}");
        }
        // What ends goes on ending.
        let ending = successor(Some(&pod(7000, "old", true)), &pod(6, "new", false), told(true, true)).unwrap();
        assert_eq!((image(&ending), version(&ending)), ("new".to_owned(), 6));
        assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(5));
        assert!(ending.metadata.deletion_timestamp.is_some());
    }
}
