//! The task that owns all samples: reads every cgroup at aligned ticks, new ones at once, and everything on
//! request when the last round is older than allowed. Runs on a thread of the blocking pool, for its reads block.

mod followed;
mod kills;
mod reading;
mod tracked;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Subject},
    events::{Event, Events, Happened, Whose},
    history::{History, Point},
    lane::Lane,
    model::{Machine, Node, Row, Sample, Snapshot, SystemRow},
    source::{self, Buffer, KernelLog, MachineFiles, Totals},
};
use followed::{Followed, Ticket};
use kills::Kills;
use reading::{Look, Seen, Surroundings};
use tracked::{Tracked, point};

#[cfg(test)]
mod tests;

/// Counters that nobody watches by the second, descriptors and sockets are read again after this time.
const RARELY_NS: u64 = 60_000_000_000;
/// Limits are read again after this time, should somebody have changed them behind the engine's back; what the engine changes
/// it tells.
const LIMITS_NS: u64 = 600_000_000_000;
/// A cgroup whose files do not answer in this time is left to a thread of its own; the others go on.
const PATIENCE: Duration = Duration::from_millis(200);
/// How many cgroups may hang at once.
const HANGING_MOST: u64 = 64;
/// A container that has one point only gets its second, and so a rate, this soon.
const SECOND_LOOK: Duration = Duration::from_millis(1100);

/// What others ask of the task.
#[derive(Debug)]
pub(crate) enum Request {
    /// Take a round unless the last is young enough; answered when it is published.
    Fresh(oneshot::Sender<()>),
    /// The past of a container, of a pod by its uid, or of the node for an empty id.
    History(String, oneshot::Sender<Vec<Point>>),
}

/// Containers whose sizes the background walks look after: id and writable layer.
pub(crate) type Layers = Arc<Vec<(String, Option<PathBuf>)>>;

#[derive(Debug)]
pub(crate) struct Sampler {
    config: Config,
    around: Arc<Surroundings>,
    lane: Lane<Ticket, Look, Seen>,
    machine: Arc<Machine>,
    machine_files: MachineFiles,
    buffer: Buffer,
    /// The machine's of the last round.
    totals: Arc<Totals>,
    followed: Followed,
    /// What the lane has seen; kept for its room.
    seen: Vec<(Ticket, Seen)>,
    /// Which containers have a layer to be measured may have changed.
    layers_moved: bool,
    kernel: KernelLog,
    kills: Kills,
    node_history: History,
    system: HashMap<String, History>,
    devices: Arc<BTreeMap<(u32, u32), String>>,
    events: Events,
    rounds: Arc<AtomicU64>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    layers: watch::Sender<Layers>,
}

impl Sampler {
    /// Opens the machine's files and takes the first look at the node. Answers with the first snapshot inside the channel.
    pub(crate) fn new(
        config: Config,
        layers: watch::Sender<Layers>,
        events: Events,
    ) -> (Self, watch::Receiver<Arc<Snapshot>>) {
        let layout = source::cgroups(&config.root)
            .inspect_err(|error| tracing::error!(%error, "usage of containers is not available"))
            .ok();
        let machine = Arc::new(source::machine(&config.root, jiff::Timestamp::now()));
        let machine_files = MachineFiles::open(&config.root, layout.as_ref());
        let now = jiff::Timestamp::now();
        let mut buffer = Buffer::new();
        let totals = machine_files.totals(&mut buffer);
        let node = machine_files.read(&totals, &mut buffer, Sample::empty(now, 0));
        let first = Snapshot {
            at: now,
            mono_ns: 0,
            machine: Arc::clone(&machine),
            node,
            rows: Vec::new(),
            pods: BTreeMap::new(),
            system: Vec::new(),
            devices: Arc::default(),
        };
        let (snapshot, receiver) = watch::channel(Arc::new(first));
        let around = Arc::new(Surroundings::new(&config, layout, Instant::now()));
        let reader = Arc::clone(&around);
        let lane = Lane::new("usage", HANGING_MOST, PATIENCE, move |look| reading::look(&reader, look));
        let sampler = Self {
            kernel: KernelLog::of(&source::under(&config.root, Path::new("/dev/kmsg"))),
            config,
            around,
            lane,
            machine,
            machine_files,
            buffer,
            totals: Arc::new(totals),
            followed: Followed::default(),
            seen: Vec::new(),
            layers_moved: false,
            kills: Kills::default(),
            node_history: History::default(),
            system: HashMap::new(),
            devices: Arc::default(),
            events,
            rounds: Arc::default(),
            snapshot,
            layers,
        };
        (sampler, receiver)
    }

    /// How many rounds there were so far.
    pub(crate) fn rounds(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rounds)
    }

    /// Works until told to stop, or until nobody can ask any more.
    pub(crate) async fn run(
        mut self,
        mut subjects: watch::Receiver<Arc<Vec<Subject>>>,
        mut requests: mpsc::Receiver<Request>,
        shutdown: CancellationToken,
    ) {
        name_thread("usage rounds");
        let interval = self.config.interval.max(Duration::from_secs(1));
        let start = tokio::time::Instant::now();
        let mut told = true;
        let list = Arc::clone(&subjects.borrow_and_update());
        self.adopt(&list);
        let mut cost = self.round();
        let mut next = self.after(start, interval, cost);
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                changed = subjects.changed(), if told => {
                    told = changed.is_ok();
                    let list = Arc::clone(&subjects.borrow_and_update());
                    self.adopt(&list);
                    self.look_at_new();
                    next = next.min(self.after(start, interval, cost));
                }
                request = requests.recv() => match request {
                    None => break,
                    Some(Request::Fresh(answer)) => {
                        let age = self.mono_ns().saturating_sub(self.snapshot.borrow().mono_ns);
                        if u128::from(age) >= self.config.max_age.as_nanos() {
                            cost = self.round();
                        }
                        // The asker may have given up waiting.
                        let _ = answer.send(());
                    }
                    Some(Request::History(id, answer)) => {
                        let history = if id.is_empty() {
                            Some(&self.node_history)
                        } else {
                            self.followed.find(&id).map(|tracked| &tracked.history)
                        };
                        let _ = answer.send(history.map(|h| h.points().copied().collect()).unwrap_or_default());
                    }
                },
                () = tokio::time::sleep_until(next) => {
                    cost = self.round();
                    next = self.after(start, interval, cost);
                }
            }
        }
    }

    /// When the next round is due: at a multiple of the interval, sooner for new containers, later when rounds are dear.
    fn after(&self, start: tokio::time::Instant, interval: Duration, cost: Duration) -> tokio::time::Instant {
        let now = tokio::time::Instant::now();
        let into = (now - start).as_nanos() % interval.as_nanos().max(1);
        let left = interval.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or(0)));
        // A cgroup that fails or is gone must not make this poll.
        let young = |t: &Tracked| t.history.len() == 1 && t.files.is_some() && !t.complained;
        let young = self.followed.containers().any(young) || self.node_history.len() == 1;
        let wait = if young { left.min(SECOND_LOOK) } else { left };
        now + wait.max(cost * 2).max(Duration::from_millis(10))
    }

    fn mono_ns(&self) -> u64 {
        self.around.mono_ns()
    }

    /// Takes over a new list of containers: forgets those that are not in it, adds those that are new.
    fn adopt(&mut self, list: &[Subject]) {
        for gone in self.followed.adopt(list).iter().filter(|gone| !gone.cgroup.is_empty()) {
            self.events.put(Event::now(&gone.cgroup, Happened::Deleted));
        }
        self.layers_moved = true;
        self.kills.adopt(list);
    }

    /// Reads what has not been read yet, and publishes it beside what is known of the others.
    fn look_at_new(&mut self) {
        self.look_at(|tracked| tracked.history.is_empty());
        let last = Arc::clone(&self.snapshot.borrow());
        self.publish(last.node.clone(), last.system.clone(), last.mono_ns);
    }

    /// Reads everything and publishes it. Answers how long that took.
    fn round(&mut self) -> Duration {
        let began = Instant::now();
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.totals = Arc::new(self.machine_files.totals(&mut self.buffer));
        self.look_at(|_| true);
        let system = self.look_at_system();
        // Last, so that the node has used at least what its containers have used.
        let sample = Sample::empty(jiff::Timestamp::now(), self.mono_ns());
        let mut node = self.machine_files.read(&self.totals, &mut self.buffer, sample);
        self.node_history.push(point(&node.sample));
        node.usage_nano_cores = self.node_history.nano_cores();
        self.publish(node, system, self.mono_ns());
        began.elapsed()
    }

    /// Looks at the containers that are chosen, and at pods' own cgroups, as far as no earlier look is under way.
    fn look_at(&mut self, chosen: impl Fn(&Tracked) -> bool) {
        let mono_ns = self.mono_ns();
        let looks = self.followed.looks(mono_ns, &self.totals, chosen);
        self.take_looks(looks, mono_ns);
        for tracked in self.followed.all_mut().filter(|t| t.under_way) {
            tracked.slow = true;
            tracked.mark_stale();
            tracked.complain(|id| {
                tracing::warn!(
                    container = id,
                    "the kernel does not answer for this container: its usage is stale until it does"
                );
            });
        }
        self.followed.forget_pods(|pod| pod.files.is_none() && !pod.under_way);
    }

    /// Has looks taken and takes in what they saw.
    fn take_looks(&mut self, looks: Vec<(Ticket, Look)>, mono_ns: u64) {
        let mut all = std::mem::take(&mut self.seen);
        let left = self.lane.round(looks, &mut all);
        for (ticket, seen) in all.drain(..) {
            self.take(ticket, seen, mono_ns);
        }
        self.seen = all;
        for (ticket, look) in left {
            if let Some(tracked) = self.followed.of(ticket) {
                tracked.under_way = false;
                tracked.files = look.files;
                tracked.mark_stale();
            }
        }
    }

    fn take(&mut self, ticket: Ticket, seen: Seen, mono_ns: u64) {
        let opened = seen.opened.is_some();
        let pod_cgroup = seen.files.as_ref().filter(|_| opened).and_then(|files| files.pod_cgroup.clone());
        self.layers_moved |= opened || seen.files.is_none();
        // Forgotten meanwhile: its files close here.
        let Some(tracked) = self.followed.of(ticket) else { return };
        tracked.take(seen, mono_ns);
        if ticket.of_pod {
            return;
        }
        let subject = &tracked.subject;
        if opened {
            let whose = (!subject.pod_uid.is_empty() && !subject.is_sandbox())
                .then(|| Whose { pod_uid: subject.pod_uid.clone(), container: subject.container_name.clone() });
            let created = Event { at: subject.started_at, whose, ..Event::now(&tracked.cgroup, Happened::Created) };
            self.events.put(created);
        }
        if let Some(row) = &tracked.row {
            self.kills.counted(&subject.container_id, row.sample.memory.oom_kills);
        }
        if let Some(path) = pod_cgroup {
            let subject = Arc::clone(subject);
            self.follow_pod(&subject, &path, mono_ns);
        }
    }

    /// Begins with the cgroup that a pod has for itself.
    fn follow_pod(&mut self, subject: &Subject, path: &str, mono_ns: u64) {
        let ticket = self.followed.follow_pod(&subject.pod_uid, |key, serial| {
            let own = Subject {
                pod_name: subject.pod_name.clone(),
                pod_namespace: subject.pod_namespace.clone(),
                pod_uid: subject.pod_uid.clone(),
                started_at: subject.pod_started_at,
                pod_started_at: subject.pod_started_at,
                ..Subject::default()
            };
            let mut pod = Tracked::new(key, serial, Arc::new(own));
            pod.cgroup = Arc::from(path);
            pod
        });
        if let Some(ticket) = ticket
            && let Some(pod) = self.followed.of(ticket)
        {
            let look = pod.look(mono_ns, &self.totals);
            self.take_looks(vec![(ticket, look)], mono_ns);
        }
    }

    fn look_at_system(&mut self) -> Vec<SystemRow> {
        let mut rows = Vec::with_capacity(self.config.system_processes.len());
        for process in &self.config.system_processes {
            let mono_ns = self.mono_ns();
            let now = jiff::Timestamp::now();
            let row =
                source::daemon(&self.config.root, process, self.machine.booted_at, now, mono_ns, &mut self.buffer);
            // A daemon that does not run has no row; that is not worth a line each round.
            let Ok(mut row) = row else { continue };
            let history = self.system.entry(process.name.clone()).or_default();
            history.push(Point { mono_ns, cpu_ns: row.cpu.usage_ns, ..Point::default() });
            row.usage_nano_cores = history.nano_cores();
            rows.push(row);
        }
        rows
    }

    fn publish(&mut self, node: Node, system: Vec<SystemRow>, mono_ns: u64) {
        self.count_kills();
        let rows: Vec<Arc<Row>> = self.followed.containers().filter_map(|t| t.row.clone()).collect();
        for device in rows.iter().flat_map(|row| &row.sample.block) {
            let number = (device.major, device.minor);
            if !self.devices.contains_key(&number)
                && let Some(name) = source::block_device_name(&self.config.root, device.major, device.minor)
            {
                Arc::make_mut(&mut self.devices).insert(number, name);
            }
        }
        if std::mem::replace(&mut self.layers_moved, false) {
            let there = self.followed.containers().filter(|t| t.files.is_some() || t.under_way);
            let layers: Vec<_> = there.map(|t| (t.subject.container_id.clone(), t.layer.clone())).collect();
            self.layers.send_if_modified(|known| {
                let differs = **known != layers;
                if differs {
                    *known = Arc::new(layers);
                }
                differs
            });
        }
        self.snapshot.send_replace(Arc::new(Snapshot {
            at: jiff::Timestamp::now(),
            mono_ns,
            machine: Arc::clone(&self.machine),
            node,
            rows,
            pods: self.followed.pods().filter_map(|t| Some((Arc::clone(t.key.id()), t.row.clone()?))).collect(),
            system,
            devices: Arc::clone(&self.devices),
        }));
    }
}

impl Sampler {
    /// Puts the kills of all runs of a container where its cgroup has only those of this run.
    fn count_kills(&mut self) {
        for kill in self.kernel.kills() {
            self.kills.logged(&kill.cgroup);
            self.events.put(Event::now(&kill.cgroup.clone(), Happened::Killed(kill)));
        }
        let totals = self.kills.totals();
        if totals.is_empty() {
            return;
        }
        for tracked in self.followed.all_mut() {
            let kills = Kills::of(&totals, &tracked.subject);
            if let Some(row) = tracked.row.as_mut().filter(|row| row.sample.memory.oom_kills < kills) {
                Arc::make_mut(row).sample.memory.oom_kills = kills;
            }
        }
    }
}

/// So that tools tell what it costs; the thread is this task's as long as it works.
pub(crate) fn name_thread(name: &str) {
    // A name that does not take changes nothing else.
    let _ = std::ffi::CString::new(name).map(|name| nix::sys::prctl::set_name(&name));
}
