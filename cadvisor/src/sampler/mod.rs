//! The task that owns all samples: reads every cgroup at aligned ticks, new ones at once, and everything on
//! request when the last round is older than allowed. Runs on a thread of the blocking pool, for its reads block.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Subject},
    history::{History, Point},
    model::{Descriptors, Limits, Machine, Node, Row, Sample, Snapshot, SystemRow},
    parse::cgroup::Layout,
    source::{self, Buffer, ContainerFiles, MachineFiles, SourceError},
};

#[cfg(test)]
mod tests;

/// Limits, rare counters and descriptors are read again after this time.
const RARELY_NS: u64 = 60_000_000_000;
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
struct Tracked {
    subject: Arc<Subject>,
    files: Option<ContainerFiles>,
    cgroup: Arc<str>,
    layer: Option<PathBuf>,
    history: History,
    limits: Limits,
    descriptors: Descriptors,
    limits_at: Option<u64>,
    row: Option<Arc<Row>>,
    complained: bool,
}

impl Tracked {
    fn new(subject: Arc<Subject>) -> Self {
        Self {
            subject,
            files: None,
            cgroup: Arc::from(""),
            layer: None,
            history: History::default(),
            limits: Limits::default(),
            descriptors: Descriptors::default(),
            limits_at: None,
            row: None,
            complained: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Sampler {
    config: Config,
    clock: Instant,
    layout: Option<Layout>,
    machine: Arc<Machine>,
    machine_files: MachineFiles,
    buffer: Buffer,
    containers: HashMap<String, Tracked>,
    pods: HashMap<String, Tracked>,
    node_history: History,
    system: HashMap<String, History>,
    devices: Arc<BTreeMap<(u32, u32), String>>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    layers: watch::Sender<Layers>,
}

impl Sampler {
    /// Opens the machine's files and takes the first look at the node. Answers with the first snapshot inside the channel.
    pub(crate) fn new(config: Config, layers: watch::Sender<Layers>) -> (Self, watch::Receiver<Arc<Snapshot>>) {
        let layout = source::cgroups(&config.root)
            .inspect_err(|error| tracing::error!(%error, "usage of containers is not available"))
            .ok();
        let machine = Arc::new(source::machine(&config.root, jiff::Timestamp::now()));
        let machine_files = MachineFiles::open(&config.root, layout.as_ref());
        let now = jiff::Timestamp::now();
        let mut buffer = Buffer::new();
        let node = machine_files.read(&mut buffer, Sample::empty(now, 0));
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
        let sampler = Self {
            config,
            clock: Instant::now(),
            layout,
            machine,
            machine_files,
            buffer,
            containers: HashMap::new(),
            pods: HashMap::new(),
            node_history: History::default(),
            system: HashMap::new(),
            devices: Arc::default(),
            snapshot,
            layers,
        };
        (sampler, receiver)
    }

    /// Works until told to stop, or until nobody can ask any more.
    pub(crate) async fn run(
        mut self,
        mut subjects: watch::Receiver<Arc<Vec<Subject>>>,
        mut requests: mpsc::Receiver<Request>,
        shutdown: CancellationToken,
    ) {
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
                            self.containers.get(&id).or_else(|| self.pods.get(&id)).map(|t| &t.history)
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
        let young = self.containers.values().any(young) || self.node_history.len() == 1;
        let wait = if young { left.min(SECOND_LOOK) } else { left };
        now + wait.max(cost * 2).max(Duration::from_millis(10))
    }

    fn mono_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes over a new list of containers: forgets those that are not in it, adds those that are new.
    fn adopt(&mut self, list: &[Subject]) {
        let wanted: HashMap<&str, &Subject> = list.iter().map(|s| (s.container_id.as_str(), s)).collect();
        self.containers.retain(|id, _| wanted.contains_key(id.as_str()));
        for (id, subject) in wanted {
            match self.containers.get_mut(id) {
                Some(known) if *known.subject == *subject => {}
                // Another process: the container was started again in the same place.
                Some(known) if known.subject.pid != subject.pid => *known = Tracked::new(Arc::new(subject.clone())),
                Some(known) => known.subject = Arc::new(subject.clone()),
                None => {
                    self.containers.insert(id.to_owned(), Tracked::new(Arc::new(subject.clone())));
                }
            }
        }
        let uids: HashSet<&str> = list.iter().map(|s| s.pod_uid.as_str()).collect();
        self.pods.retain(|uid, _| uids.contains(uid.as_str()));
        self.containers.shrink_to(self.containers.len() * 2 + 8);
    }

    /// Reads what has not been read yet, and publishes it beside what is known of the others.
    fn look_at_new(&mut self) {
        let new: Vec<String> =
            self.containers.iter().filter(|(_, t)| t.history.is_empty()).map(|(id, _)| id.clone()).collect();
        for id in new {
            self.look_at(&id);
        }
        let last = Arc::clone(&self.snapshot.borrow());
        self.publish(last.node.clone(), last.system.clone(), last.mono_ns);
    }

    /// Reads everything and publishes it. Answers how long that took.
    fn round(&mut self) -> Duration {
        let began = Instant::now();
        let ids: Vec<String> = self.containers.keys().cloned().collect();
        for id in ids {
            self.look_at(&id);
        }
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            self.look_at_pod(&uid);
        }
        let system = self.look_at_system();
        // Last, so that the node has used at least what its containers have used.
        let sample = Sample::empty(jiff::Timestamp::now(), self.mono_ns());
        let mut node = self.machine_files.read(&mut self.buffer, sample);
        self.node_history.push(point(&node.sample));
        node.usage_nano_cores = self.node_history.nano_cores();
        self.publish(node, system, self.mono_ns());
        began.elapsed()
    }

    fn look_at(&mut self, id: &str) {
        let mono_ns = self.mono_ns();
        let Some(tracked) = self.containers.get_mut(id) else { return };
        if tracked.files.is_none() {
            let Some(layout) = &self.layout else { return };
            match ContainerFiles::open(&self.config.root, layout, &tracked.subject, &mut self.buffer) {
                Ok(files) => {
                    tracked.cgroup = Arc::from(files.cgroup.as_str());
                    tracked.layer = files.upper_dir(&self.config.root, &self.config.docker_root);
                    if let Some(path) = &files.pod_cgroup
                        && !self.pods.contains_key(&tracked.subject.pod_uid)
                        && let Ok(files) = ContainerFiles::open_pod(&self.config.root, layout, path)
                    {
                        let mut pod = Tracked::new(Arc::new(Subject {
                            container_id: String::new(),
                            pid: 0,
                            name: String::new(),
                            image: String::new(),
                            container_name: String::new(),
                            ..Subject::clone(&tracked.subject)
                        }));
                        pod.cgroup = Arc::from(path.as_str());
                        pod.files = Some(files);
                        self.pods.insert(tracked.subject.pod_uid.clone(), pod);
                    }
                    tracked.files = Some(files);
                    tracked.limits_at = None;
                    tracked.complained = false;
                }
                Err(error) => {
                    if !tracked.complained {
                        tracked.complained = true;
                        tracing::debug!(container = id, %error, "no usage of this container for now");
                    }
                    return;
                }
            }
        }
        observe(tracked, &self.config, &mut self.buffer, mono_ns);
    }

    fn look_at_pod(&mut self, uid: &str) {
        let mono_ns = self.mono_ns();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        observe(pod, &self.config, &mut self.buffer, mono_ns);
        if pod.files.is_none() {
            // Its next container, if there is one, opens it again.
            self.pods.remove(uid);
        }
    }

    fn look_at_system(&mut self) -> Vec<SystemRow> {
        let mut rows = Vec::with_capacity(self.config.system_processes.len());
        for process in &self.config.system_processes {
            let mono_ns = u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
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
        let mut rows: Vec<Arc<Row>> = self.containers.values().filter_map(|t| t.row.clone()).collect();
        rows.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
        for device in rows.iter().flat_map(|row| &row.sample.block) {
            let number = (device.major, device.minor);
            if !self.devices.contains_key(&number)
                && let Some(name) = source::block_device_name(&self.config.root, device.major, device.minor)
            {
                Arc::make_mut(&mut self.devices).insert(number, name);
            }
        }
        let layers: Vec<(String, Option<PathBuf>)> = {
            let mut layers: Vec<_> = self
                .containers
                .iter()
                .filter(|(_, tracked)| tracked.files.is_some())
                .map(|(id, tracked)| (id.clone(), tracked.layer.clone()))
                .collect();
            layers.sort_unstable();
            layers
        };
        self.layers.send_if_modified(|known| {
            let differs = **known != layers;
            if differs {
                *known = Arc::new(layers);
            }
            differs
        });
        self.snapshot.send_replace(Arc::new(Snapshot {
            at: jiff::Timestamp::now(),
            mono_ns,
            machine: Arc::clone(&self.machine),
            node,
            rows,
            pods: self.pods.iter().filter_map(|(uid, t)| Some((uid.clone(), t.row.clone()?))).collect(),
            system,
            devices: Arc::clone(&self.devices),
        }));
    }
}

fn order(row: &Row) -> (&str, &str, &str, &str) {
    let s = &row.subject;
    (&s.pod_namespace, &s.pod_name, &s.container_name, &s.container_id)
}

fn point(sample: &Sample) -> Point {
    let sum = |of: fn(&Sample) -> u64| of(sample);
    Point {
        at_ms: sample.at.as_millisecond(),
        mono_ns: sample.mono_ns,
        cpu_ns: sample.cpu.usage_ns,
        working_set_bytes: sample.memory.working_set_bytes(),
        rx_bytes: sum(|s| s.network.iter().map(|i| i.rx_bytes).sum()),
        tx_bytes: sum(|s| s.network.iter().map(|i| i.tx_bytes).sum()),
        read_bytes: sum(|s| s.block.iter().map(|d| d.read_bytes).sum()),
        write_bytes: sum(|s| s.block.iter().map(|d| d.write_bytes).sum()),
    }
}

/// Reads one cgroup. What is gone loses its row; what cannot be read keeps its last, marked stale.
fn observe(tracked: &mut Tracked, config: &Config, buffer: &mut Buffer, mono_ns: u64) {
    let Some(files) = &mut tracked.files else { return };
    if tracked.limits_at.is_none_or(|at| mono_ns - at >= RARELY_NS) {
        tracked.limits = files.read_limits(buffer);
        tracked.descriptors = files.descriptors(&config.root, buffer);
        tracked.limits_at = Some(mono_ns);
    }
    let mut sample = Sample::empty(jiff::Timestamp::now(), mono_ns);
    match files.read(buffer, &mut sample) {
        Ok(()) => {
            tracked.history.push(point(&sample));
            tracked.row = Some(Arc::new(Row {
                subject: Arc::clone(&tracked.subject),
                cgroup: Arc::clone(&tracked.cgroup),
                sample,
                usage_nano_cores: tracked.history.nano_cores(),
                limits: tracked.limits,
                descriptors: tracked.descriptors,
                host_network: files.host_network,
                stale: false,
            }));
        }
        Err(SourceError::Gone { .. }) => {
            tracked.files = None;
            tracked.row = None;
        }
        Err(error) => {
            if let Some(row) = &mut tracked.row {
                Arc::make_mut(row).stale = true;
            }
            if !tracked.complained {
                tracked.complained = true;
                tracing::warn!(container = %tracked.subject.container_id, %error, "usage of this container is stale");
            }
        }
    }
}
