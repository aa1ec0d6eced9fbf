//! The task that owns all samples. Housekeeping reads every cgroup at aligned ticks, new ones at once, and all of them
//! on request when the last samples are older than allowed. Runs on a thread of the blocking pool, since its reads
//! block.

mod cgroup_set;
mod cgroup_state;
mod oom_kills;
mod reading;
mod snapshot;
mod system_cgroups;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    moment::Moment,
    published_map::{Differences, Follower, Publisher},
};

use crate::{
    config::{Config, Target},
    events::{ContainerRef, Event, EventType, Events},
    history::{History, Point},
    model::{Machine, Node, Row, Rows, Sample, SharedMap, Snapshot, SystemCgroup},
    source::{self, Buffer, KernelLog, MachineFiles, Totals},
    stall_pool::StallTolerantPool,
};
use cgroup_set::{CgroupSet, SlotId};
use cgroup_state::{CgroupState, point};
use oom_kills::OomKills;
use reading::{ReadContext, ReadJob, ReadResult};
use system_cgroups::SystemCgroups;

#[cfg(test)]
mod tests;

/// Counters that change slowly, descriptors and sockets are read again after this time.
const SLOW_INTERVAL_NS: u64 = 60_000_000_000;
/// Limits are read again after this time, in case another program changed them; changes by the engine are reported to
/// us.
const LIMITS_INTERVAL_NS: u64 = 600_000_000_000;
/// A cgroup whose files are not read in this time is left to its thread; the others are read by another one.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
/// Threads that may be stalled at once.
const MAX_STALLED_THREADS: u64 = 64;
/// The machine's properties are read again after this time (upstream's `update_machine_info_interval`): memory may be
/// plugged in, disks and interfaces come and go, and the boot time follows the clock.
const MACHINE_INTERVAL: Duration = Duration::from_secs(300);
/// A container with a single point gets its second, and so a rate, this soon.
const SECOND_SAMPLE_DELAY: Duration = Duration::from_millis(1100);

/// Requests to the task.
#[derive(Debug)]
pub(crate) enum Request {
    /// Take new samples unless the last are recent enough; answered when they are published.
    Fresh(oneshot::Sender<()>),
    /// The histories of containers, of pods by their uid, or of the node for an empty id; those without one are left out.
    Histories(Vec<String>, oneshot::Sender<HashMap<String, Vec<Point>>>),
}

/// A container whose disk usage is scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) target: Arc<Target>,
    /// Its writable layer, where that is a directory.
    pub(crate) dir: Option<PathBuf>,
}

/// The running containers, by id.
pub(crate) type Targets = Follower<Arc<str>, Arc<Target>>;

/// By container id.
pub(crate) type Layers = Publisher<Arc<str>, Layer>;

#[derive(Debug)]
pub(crate) struct Sampler {
    config: Config,
    context: Arc<ReadContext>,
    pool: StallTolerantPool<SlotId, ReadJob, ReadResult>,
    machine: Arc<Machine>,
    machine_read: Instant,
    machine_files: MachineFiles,
    buffer: Buffer,
    /// The machine-wide counters of the last housekeeping.
    totals: Arc<Totals>,
    cgroups: CgroupSet,
    /// Results of the pool; a field for the sake of its allocation.
    results: Vec<(SlotId, ReadResult)>,
    /// Cgroups whose rows may be others than those of the last snapshot.
    touched: Vec<SlotId>,
    rows: Rows,
    pods: SharedMap<Arc<str>, Arc<Row>>,
    kernel: KernelLog,
    oom_kills: OomKills,
    node_history: History,
    system: HashMap<String, History>,
    system_cgroups: SystemCgroups,
    all_pods: Option<Arc<SystemCgroup>>,
    runtime_cgroups: Arc<Vec<Arc<SystemCgroup>>>,
    devices: Arc<BTreeMap<(u32, u32), String>>,
    events: Events,
    housekeepings: Arc<AtomicU64>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    layers: Layers,
}

impl Sampler {
    /// Opens the machine's files and takes the first sample of the node, which is the channel's first snapshot.
    pub(crate) fn new(config: Config, layers: Layers, events: Events) -> (Self, watch::Receiver<Arc<Snapshot>>) {
        let layout = source::cgroups(&config.root)
            .inspect_err(|error| tracing::error!(%error, "no usage of containers available"))
            .ok();
        if let Some(layout) = &layout
            && !source::has_memory_controller(&config.root, layout)
        {
            tracing::warn!(
                "the kernel has no memory controller: usage of memory is missing, and pods are missing in metrics.k8s.io; boot without cgroup_disable=memory, or with cgroup_enable=memory"
            );
        }
        let machine = Arc::new(source::machine(&config.root, jiff::Timestamp::now()));
        let machine_files = MachineFiles::open(&config.root, layout.as_ref());
        let now = Moment::now();
        let mut buffer = Buffer::new();
        let totals = machine_files.totals(&mut buffer);
        let node = machine_files.read(&totals, &mut buffer, Sample::empty(now)).unwrap_or_else(|error| {
            tracing::error!(%error, "failed to read the usage of the machine; retrying");
            Node::unknown(now)
        });
        let first = Snapshot {
            moment: now,
            machine: Arc::clone(&machine),
            node: Arc::new(node),
            rows: Rows::default(),
            pods: SharedMap::default(),
            system: Arc::default(),
            all_pods: None,
            runtime_cgroups: Arc::default(),
            devices: Arc::default(),
        };
        let (snapshot, receiver) = watch::channel(Arc::new(first));
        let context = Arc::new(ReadContext::new(&config, layout));
        let reader = Arc::clone(&context);
        let pool =
            StallTolerantPool::new("usage", MAX_STALLED_THREADS, READ_TIMEOUT, move |job| reading::read(&reader, job));
        let sampler = Self {
            kernel: KernelLog::of(&source::under(&config.root, Path::new("/dev/kmsg"))),
            config,
            context,
            pool,
            machine,
            machine_read: Instant::now(),
            machine_files,
            buffer,
            totals: Arc::new(totals),
            cgroups: CgroupSet::default(),
            results: Vec::new(),
            touched: Vec::new(),
            rows: Rows::default(),
            pods: SharedMap::default(),
            oom_kills: OomKills::default(),
            node_history: History::default(),
            system: HashMap::new(),
            system_cgroups: SystemCgroups::default(),
            all_pods: None,
            runtime_cgroups: Arc::default(),
            devices: Arc::default(),
            events,
            housekeepings: Arc::default(),
            snapshot,
            layers,
        };
        (sampler, receiver)
    }

    /// The number of housekeepings so far.
    pub(crate) fn housekeepings(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.housekeepings)
    }

    /// Runs until `shutdown`, or until the last handle is dropped.
    pub(crate) async fn run(
        mut self,
        mut targets: Targets,
        mut requests: mpsc::Receiver<Request>,
        shutdown: CancellationToken,
    ) {
        name_thread("usage rounds");
        let interval = self.config.interval.max(Duration::from_secs(1));
        let start = tokio::time::Instant::now();
        let mut has_targets = true;
        self.apply(targets.take());
        let cost = self.housekeeping();
        let mut next = self.next_housekeeping(start, interval, cost);
        loop {
            let second = self.next_second();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                changes = targets.changed(), if has_targets => {
                    has_targets = changes.is_some();
                    let new = self.apply(changes.unwrap_or_default());
                    self.sample_new(new);
                }
                request = requests.recv() => match request {
                    None => break,
                    Some(Request::Fresh(answer)) => {
                        let age = Moment::now().since(&self.snapshot.borrow().moment);
                        if age >= self.config.max_age {
                            self.housekeeping();
                        }
                        // The caller may have timed out.
                        let _ = answer.send(());
                    }
                    Some(Request::Histories(ids, answer)) => {
                        let _ = answer.send(self.histories(ids));
                    }
                },
                () = tokio::time::sleep_until(next) => {
                    let cost = self.housekeeping();
                    next = self.next_housekeeping(start, interval, cost);
                }
                () = tokio::time::sleep_until(second.unwrap_or(next)), if second.is_some_and(|second| second < next) => {
                    self.sample_second();
                }
            }
        }
    }

    fn histories(&self, ids: Vec<String>) -> HashMap<String, Vec<Point>> {
        let wanted: HashSet<String> = ids.into_iter().collect();
        let node = std::iter::once(("", &self.node_history));
        let known = node.chain(self.cgroups.all().map(|state| (&**state.key.id(), &state.history)));
        known
            .filter(|(id, _)| wanted.contains(*id))
            .map(|(id, history)| (id.to_owned(), history.points().copied().collect()))
            .collect()
    }

    /// When the next housekeeping is due: at a multiple of the interval, later when housekeeping is expensive, and sooner
    /// while the node itself has no rate.
    fn next_housekeeping(
        &self,
        start: tokio::time::Instant,
        interval: Duration,
        cost: Duration,
    ) -> tokio::time::Instant {
        let now = tokio::time::Instant::now();
        let into = (now - start).as_nanos() % interval.as_nanos().max(1);
        let left = interval.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or(0)));
        let wait = if self.node_history.len() == 1 { left.min(SECOND_SAMPLE_DELAY) } else { left };
        now + wait.max(cost * 2).max(Duration::from_millis(10))
    }

    /// When new containers get their second sample, and so a rate.
    fn next_second(&self) -> Option<tokio::time::Instant> {
        let age = Duration::from_nanos(Moment::now().mono_ns.saturating_sub(self.cgroups.oldest_young()?));
        let left = SECOND_SAMPLE_DELAY.saturating_sub(age);
        Some(tokio::time::Instant::now() + left.max(Duration::from_millis(10)))
    }

    /// Samples the new containers that are old enough for a rate, and none of the others.
    fn sample_second(&mut self) {
        self.totals = Arc::new(self.machine_files.totals(&mut self.buffer));
        let delay = u64::try_from(SECOND_SAMPLE_DELAY.as_nanos()).unwrap_or(u64::MAX);
        self.sample_new(self.cgroups.young_until(Moment::now().mono_ns.saturating_sub(delay)));
    }

    /// Takes what has changed of the containers; returns those that have no sample yet.
    fn apply(&mut self, changes: Differences<Arc<str>, Arc<Target>>) -> Vec<SlotId> {
        let mut new = Vec::new();
        for (id, target) in changes {
            let Some(target) = target else {
                self.remove(&id);
                continue;
            };
            self.oom_kills.start(&target);
            let (slot, before) = self.cgroups.set(&target);
            if let Some(before) = before {
                self.rows.remove(&before.target);
            }
            new.extend(slot);
        }
        new
    }

    fn remove(&mut self, id: &str) {
        self.oom_kills.end(id);
        self.layers.remove(id);
        let removed = self.cgroups.remove(id);
        if let Some(container) = removed.container {
            self.rows.remove(container.row.as_ref().map_or(&container.target, |row| &row.target));
            if !container.cgroup.is_empty() {
                self.events.add(Event::now(&container.cgroup, EventType::Deleted));
            }
        }
        if let Some(pod) = removed.pod {
            self.pods.remove(&**pod.key.id());
        }
    }

    /// Samples new containers, and publishes them together with the last samples of the others.
    fn sample_new(&mut self, new: Vec<SlotId>) {
        self.sample(new);
        let last = Arc::clone(&self.snapshot.borrow());
        self.publish(Arc::clone(&last.node), Arc::clone(&last.system), last.moment.mono_ns);
    }

    /// Reads the machine's properties again; without the size of memory they are no better than those of before.
    fn reread_machine(&mut self) {
        self.machine_read = Instant::now();
        let machine = source::machine(&self.config.root, self.machine.booted_at);
        if machine.memory_bytes > 0 && machine != *self.machine {
            self.machine = Arc::new(machine);
        }
    }

    /// Samples everything and publishes it. Returns how long that took.
    fn housekeeping(&mut self) -> Duration {
        let began = Instant::now();
        self.housekeepings.fetch_add(1, Ordering::Relaxed);
        if self.machine_read.elapsed() >= MACHINE_INTERVAL {
            self.reread_machine();
        }
        self.totals = Arc::new(self.machine_files.totals(&mut self.buffer));
        self.sample(self.cgroups.slots());
        self.sample_system_cgroups();
        let system = self.sample_system();
        // Last, so that the usage of the node is at least that of its containers.
        let sample = Sample::empty(Moment::now());
        let node = match self.machine_files.read(&self.totals, &mut self.buffer, sample) {
            Ok(mut node) => {
                self.node_history.push(point(&node.sample));
                node.usage_nano_cores = self.node_history.nano_cores();
                node
            }
            Err(error) => {
                let last = Arc::clone(&self.snapshot.borrow().node);
                if !last.stale {
                    tracing::warn!(%error, "failed to read the usage of the machine; reporting stale usage");
                }
                Node { stale: true, ..Node::clone(&last) }
            }
        };
        self.name_disks(&node);
        self.publish(Arc::new(node), Arc::new(system), Moment::now().mono_ns);
        began.elapsed()
    }

    /// Samples these cgroups, except those whose last read is still in flight.
    fn sample(&mut self, slots: Vec<SlotId>) {
        let mono_ns = Moment::now().mono_ns;
        let jobs = self.cgroups.start_reads(slots, mono_ns, &self.totals);
        let started: Vec<SlotId> = jobs.iter().map(|(slot, _)| *slot).collect();
        self.run_reads(jobs, mono_ns);
        for slot in started {
            let Some(state) = self.cgroups.of(slot).filter(|state| state.in_flight) else { continue };
            state.late = true;
            state.mark_stale();
            state.log_once(|id| {
                tracing::warn!(
                    cgroup = id,
                    "cgroup read timed out ({} ms); reporting stale usage",
                    READ_TIMEOUT.as_millis()
                );
            });
            self.touched.push(slot);
        }
    }

    /// Runs reads and applies their results.
    fn run_reads(&mut self, jobs: Vec<(SlotId, ReadJob)>, mono_ns: u64) {
        let mut all = std::mem::take(&mut self.results);
        let left = self.pool.run_all(jobs, &mut all);
        for (slot, result) in all.drain(..) {
            self.finish_read(slot, result, mono_ns);
        }
        self.results = all;
        for (slot, job) in left {
            if let Some(state) = self.cgroups.of(slot) {
                state.in_flight = false;
                state.files = job.files;
                state.mark_stale();
                self.touched.push(slot);
            }
        }
    }

    fn finish_read(&mut self, slot: SlotId, result: ReadResult, mono_ns: u64) {
        let opened = result.opened.is_some();
        let pod_cgroup = result.files.as_ref().filter(|_| opened).and_then(|files| files.pod_cgroup.clone());
        let layer_changed = opened || result.files.is_none() || result.layer.is_some();
        // Removed meanwhile: its files close here.
        let Some(state) = self.cgroups.of(slot) else { return };
        state.finish_read(result, mono_ns);
        self.touched.push(slot);
        if slot.of_pod {
            return;
        }
        let target = Arc::clone(&state.target);
        if layer_changed {
            if state.files.is_some() {
                let layer = Layer { target: Arc::clone(&target), dir: state.layer.clone() };
                self.layers.set(Arc::clone(state.key.id()), layer);
            } else {
                self.layers.remove(&**state.key.id());
            }
        }
        if opened {
            let container = (!target.pod_uid.is_empty() && !target.is_sandbox())
                .then(|| ContainerRef { pod_uid: target.pod_uid.clone(), name: target.container_name.clone() });
            let created = Event { at: target.started_at, container, ..Event::now(&state.cgroup, EventType::Created) };
            self.events.add(created);
        }
        // A stale row brings nothing new; its count includes kills of other runs.
        if let Some(kills) = state.row.as_ref().filter(|row| !row.stale).and_then(|row| row.sample.memory?.oom_kills) {
            self.oom_kills.set_counted(&target.container_id, kills);
        }
        if let Some(path) = pod_cgroup {
            self.add_pod(&target, &path, mono_ns);
        }
    }

    /// Adds a pod's own cgroup.
    fn add_pod(&mut self, target: &Target, path: &str, mono_ns: u64) {
        let slot = self.cgroups.add_pod(&target.pod_uid, |key, serial| {
            let own = Target {
                pod_name: target.pod_name.clone(),
                pod_namespace: target.pod_namespace.clone(),
                pod_uid: target.pod_uid.clone(),
                started_at: target.pod_started_at,
                pod_started_at: target.pod_started_at,
                ..Target::default()
            };
            let mut pod = CgroupState::new(key, serial, Arc::new(own));
            pod.cgroup = Arc::from(path);
            pod
        });
        if let Some(slot) = slot
            && let Some(pod) = self.cgroups.of(slot)
        {
            let job = pod.start_read(mono_ns, &self.totals);
            self.run_reads(vec![(slot, job)], mono_ns);
        }
    }
}

/// Names the thread for tools such as `top`; it is this task's as long as that runs.
pub(crate) fn name_thread(name: &str) {
    // A failure has no consequences.
    let _ = std::ffi::CString::new(name).map(|name| nix::sys::prctl::set_name(&name));
}
