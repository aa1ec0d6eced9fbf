//! Files of one container: found from `/proc/PID/cgroup`, kept open, read again each round.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::Mode as FileMode,
};

use super::{
    SourceError,
    kept::{Buffer, Kept, is_gone, read_all, read_once},
    under,
};
use crate::{
    config::Subject,
    derive,
    model::{BlockDevice, Cpu, HugePages, Limits, Memory, Pressure, Sample, Seldom, Sockets, Tasks},
    parse::{
        self,
        cgroup::{Layout, Mode, cut_at, path_of, pod_of, upper_dir},
        cpu, memory, net, pids, psi,
    },
};

/// Processes looked at when descriptors are counted, and links read of each: a bound on the cost of one round.
const PROCESSES_MOST: usize = 64;
const LINKS_MOST: usize = 512;

#[derive(Debug)]
struct V1 {
    cpu_usage: Kept,
    cpu_split: Option<Kept>,
    cpu_throttling: Option<Kept>,
    memory_usage: Option<Kept>,
    memory_stat: Option<Kept>,
    memory_oom: Option<Kept>,
    block_bytes: Option<Kept>,
    block_requests: Option<Kept>,
    pids: Option<Kept>,
    cpu_dir: Option<PathBuf>,
    memory_dir: Option<PathBuf>,
    pids_dir: Option<PathBuf>,
    huge_dir: Option<PathBuf>,
}

#[derive(Debug)]
struct V2 {
    cpu: Kept,
    memory_usage: Option<Kept>,
    memory_stat: Option<Kept>,
    memory_events: Option<Kept>,
    memory_swap: Option<Kept>,
    block: Option<Kept>,
    pids: Option<Kept>,
    dir: PathBuf,
}

#[derive(Debug)]
enum Version {
    V1(V1),
    V2(V2),
}

/// Counters that are read with the limits, not each round.
#[derive(Debug, Default, Clone, Copy)]
struct Rare {
    max_usage_bytes: u64,
    limit_hits: u64,
    kernel_bytes: u64,
}

/// Open files of one container, or of a pod's own cgroup.
#[derive(Debug)]
pub(crate) struct ContainerFiles {
    container: String,
    /// Path of the cgroup (of the memory controller on v1).
    pub(crate) cgroup: String,
    /// Path of the pod's own cgroup, when the container's lies in one.
    pub(crate) pod_cgroup: Option<String>,
    version: Version,
    processes: Option<Kept>,
    pressure: [Option<Kept>; 3],
    /// `/proc/PID`: stays this process's even if the number is used again.
    process: Option<File>,
    /// Interfaces, where they are the container's own. Keeps the network namespace until the container is known to have ended.
    network: Option<Kept>,
    /// A sandbox's process sleeps: but for its time and its network, what was read with the limits is told again.
    asleep: Option<Box<Sample>>,
    is_sandbox: bool,
    /// The process lives in the network namespace of the node.
    pub(crate) host_network: bool,
    rare: Rare,
}

fn files_v1(dir_of: impl Fn(&str) -> Option<PathBuf>) -> Option<V1> {
    let dirs = ["cpuacct", "cpu", "memory", "blkio", "pids", "hugetlb"].map(dir_of);
    let [cpuacct, cpu, memory, block, pids, huge] = &dirs;
    let kept = |dir: &Option<PathBuf>, name: &str| dir.as_deref().and_then(|dir| Kept::open(dir, name));
    let first = |dir: &Option<PathBuf>, names: [&str; 3]| names.iter().find_map(|name| kept(dir, name));
    Some(V1 {
        cpu_usage: kept(cpuacct, "cpuacct.usage")?,
        cpu_split: kept(cpuacct, "cpuacct.stat"),
        cpu_throttling: kept(cpu, "cpu.stat"),
        memory_usage: kept(memory, "memory.usage_in_bytes"),
        memory_stat: kept(memory, "memory.stat"),
        memory_oom: kept(memory, "memory.oom_control"),
        // The throttling layer counts every request, whichever scheduler the device has.
        block_bytes: first(
            block,
            [
                "blkio.throttle.io_service_bytes_recursive",
                "blkio.throttle.io_service_bytes",
                "blkio.bfq.io_service_bytes_recursive",
            ],
        ),
        block_requests: first(
            block,
            ["blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced", "blkio.bfq.io_serviced_recursive"],
        ),
        pids: kept(pids, "pids.current"),
        cpu_dir: cpu.clone(),
        memory_dir: memory.clone(),
        pids_dir: pids.clone(),
        huge_dir: huge.clone(),
    })
}

fn files_v2(dir: PathBuf) -> Option<V2> {
    Some(V2 {
        cpu: Kept::open(&dir, "cpu.stat")?,
        memory_usage: Kept::open(&dir, "memory.current"),
        memory_stat: Kept::open(&dir, "memory.stat"),
        memory_events: Kept::open(&dir, "memory.events"),
        memory_swap: Kept::open(&dir, "memory.swap.current"),
        block: Kept::open(&dir, "io.stat"),
        pids: Kept::open(&dir, "pids.current"),
        dir,
    })
}

impl ContainerFiles {
    /// Finds and opens the cgroup of a container through its init process.
    pub(crate) fn open(
        root: &Path,
        layout: &Layout,
        subject: &Subject,
        buffer: &mut Buffer,
    ) -> Result<Self, SourceError> {
        let not_there = || SourceError::NotThere { pid: subject.pid, container: subject.container_id.clone() };
        let process_dir = root.join(format!("proc/{}", subject.pid));
        let process = File::open(&process_dir).map_err(|_| not_there())?;
        let text = read_once(&process_dir.join("cgroup"), buffer).map_err(|_| not_there())?.to_vec();
        let cut = |controller: &str| path_of(&text, controller).and_then(|path| cut_at(path, &subject.container_id));
        let main = if layout.mode == Mode::V2 { cut("") } else { cut("memory").or_else(|| cut("cpuacct")) };
        let cgroup = main.ok_or_else(not_there)?.to_owned();
        let pod_cgroup = pod_of(&cgroup, &subject.pod_uid).map(str::to_owned);
        let v1_dir = |controller: &str| {
            cut(controller).and_then(|path| layout.v1_dir(controller, path)).map(|dir| under(root, &dir))
        };
        let v2_dir = || cut("").and_then(|path| layout.v2_dir(path)).map(|dir| under(root, &dir));
        let mut files = Self::at(&subject.container_id, cgroup, layout, v1_dir, v2_dir)?;
        files.pod_cgroup = pod_cgroup;
        files.is_sandbox = subject.is_sandbox();
        if !subject.shares_network && (subject.is_sandbox() || subject.pod_uid.is_empty()) {
            files.network = Kept::open(&process_dir, "net/dev");
        }
        let namespace = |of: &str| std::fs::read_link(root.join("proc").join(of).join("ns/net")).ok();
        files.host_network = namespace(&subject.pid.to_string()).is_some_and(|ns| Some(ns) == namespace("self"));
        files.process = Some(process);
        Ok(files)
    }

    /// Opens a pod's own cgroup, which has no process.
    pub(crate) fn open_pod(root: &Path, layout: &Layout, cgroup: &str) -> Result<Self, SourceError> {
        let v1_dir = |controller: &str| layout.v1_dir(controller, cgroup).map(|dir| under(root, &dir));
        let v2_dir = || layout.v2_dir(cgroup).map(|dir| under(root, &dir));
        Self::at(cgroup, cgroup.to_owned(), layout, v1_dir, v2_dir)
    }

    fn at(
        container: &str,
        cgroup: String,
        layout: &Layout,
        v1_dir: impl Fn(&str) -> Option<PathBuf>,
        v2_dir: impl Fn() -> Option<PathBuf>,
    ) -> Result<Self, SourceError> {
        let gone = || SourceError::Gone { container: container.to_owned() };
        let unified = if layout.mode == Mode::V1 { None } else { v2_dir() };
        let pressure = ["cpu.pressure", "memory.pressure", "io.pressure"]
            .map(|name| unified.as_deref().and_then(|dir| Kept::open(dir, name)));
        let (version, processes) = match layout.mode {
            Mode::V2 => {
                let files = unified.and_then(files_v2).ok_or_else(gone)?;
                let processes = Kept::open(&files.dir, "cgroup.procs");
                (Version::V2(files), processes)
            }
            Mode::V1 | Mode::Hybrid => {
                let files = files_v1(&v1_dir).ok_or_else(gone)?;
                let processes =
                    v1_dir("memory").or_else(|| v1_dir("cpuacct")).and_then(|dir| Kept::open(&dir, "cgroup.procs"));
                (Version::V1(files), processes)
            }
        };
        Ok(Self {
            container: container.to_owned(),
            cgroup,
            pod_cgroup: None,
            version,
            processes,
            pressure,
            process: None,
            network: None,
            asleep: None,
            is_sandbox: false,
            host_network: false,
            rare: Rare::default(),
        })
    }

    /// Reads everything that changes by the second. The CPU counter comes first and stands for the sample's time. `all`
    /// says that this is a look with the limits.
    pub(crate) fn read(&mut self, all: bool, buffer: &mut Buffer, sample: &mut Sample) -> Result<(), SourceError> {
        let result = match &self.version {
            Version::V1(files) => files.cpu_usage.read(buffer).map(|text| {
                cpu::v1_usage(text, &mut sample.cpu);
            }),
            Version::V2(files) => files.cpu.read(buffer).map(|text| {
                cpu::v2(text, &mut sample.cpu);
            }),
        };
        result.map_err(|error| self.failed("cpu usage", error))?;
        match &self.asleep {
            Some(last) if !all => {
                if let Version::V1(_) = self.version {
                    sample.cpu = Cpu { usage_ns: sample.cpu.usage_ns, ..last.cpu };
                }
                (sample.memory, sample.pids, sample.pressure) = (last.memory, last.pids, last.pressure);
                sample.block.clone_from(&last.block);
            }
            _ => {
                self.read_rest(buffer, sample);
                self.asleep = self.is_sandbox.then(|| Box::new(sample.clone()));
            }
        }
        // A dead sandbox has no network; its cgroup tells on the next round.
        if let Some(text) = text_of(self.network.as_ref(), buffer) {
            net::devices(text, &mut sample.network);
        }
        Ok(())
    }

    fn read_rest(&self, buffer: &mut Buffer, sample: &mut Sample) {
        match &self.version {
            Version::V1(files) => files.read_rest(buffer, sample),
            Version::V2(files) => files.read_rest(buffer, sample),
        }
        sample.memory.max_usage_bytes = self.rare.max_usage_bytes.max(sample.memory.usage_bytes);
        sample.memory.limit_hits = self.rare.limit_hits;
        if let Version::V1(_) = self.version {
            sample.memory.kernel_bytes = self.rare.kernel_bytes;
        }
        // One thread is one process; of more it must be asked, for which the kernel makes a list and sorts it.
        if sample.pids.threads == 1 {
            sample.pids.processes = 1;
        } else if let Some(text) = text_of(self.processes.as_ref(), buffer) {
            sample.pids.processes = pids::count(text);
            sample.pids.threads = sample.pids.threads.max(sample.pids.processes);
        }
        let [cpu, memory, io] = &self.pressure;
        let mut psi_of = |file: &Option<Kept>| text_of(file.as_ref(), buffer).and_then(psi::pressure);
        sample.pressure = Pressure { cpu: psi_of(cpu), memory: psi_of(memory), io: psi_of(io) };
    }

    /// Reads limits and the counters that nobody watches by the second.
    pub(crate) fn read_limits(&mut self, buffer: &mut Buffer) -> Limits {
        let mut limits = match &self.version {
            Version::V1(files) => files.limits(buffer, &mut self.rare),
            Version::V2(files) => files.limits(buffer, &mut self.rare),
        };
        if let Some(process) = &self.process
            && let Ok(file) = openat(process, "limits", OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty())
            && let Ok(text) = read_all(&File::from(file), buffer)
        {
            limits.open_files = parse::machine::open_files(text);
        }
        limits
    }

    /// Counts what costs a walk over the container's processes or sockets: once a minute at most.
    pub(crate) fn seldom(&self, root: &Path, buffer: &mut Buffer) -> Seldom {
        let mut found = Seldom {
            huge_pages: match &self.version {
                Version::V1(files) => files.huge_dir.as_deref().map(|dir| huge_pages_v1(dir, buffer)),
                Version::V2(files) => Some(huge_pages_v2(&files.dir, buffer)),
            }
            .unwrap_or_default(),
            sockets_of: self.sockets(buffer),
            ..Seldom::default()
        };
        let ids: Vec<u64> = text_of(self.processes.as_ref(), buffer)
            .map(|text| pids::ids(text).take(PROCESSES_MOST).collect())
            .unwrap_or_default();
        for pid in ids {
            self.processes_of(&root.join(format!("proc/{pid}")), buffer, &mut found);
        }
        found
    }

    fn processes_of(&self, process: &Path, buffer: &mut Buffer, found: &mut Seldom) {
        let tasks: &mut Tasks = &mut found.tasks;
        if let Ok(text) = read_once(&process.join("stat"), buffer) {
            pids::state(text, tasks);
        }
        let Ok(entries) = std::fs::read_dir(process.join("fd")) else { return };
        for (at, entry) in entries.flatten().enumerate() {
            found.files += 1;
            if at < LINKS_MOST
                && std::fs::read_link(entry.path())
                    .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket"))
            {
                found.sockets += 1;
            }
        }
    }

    /// Sockets of the container's own network namespace.
    fn sockets(&self, buffer: &mut Buffer) -> Option<Sockets> {
        let process = self.process.as_ref().filter(|_| self.network.is_some() && !self.host_network)?;
        let mut text = |name: &str, then: &mut dyn FnMut(&[u8])| {
            if let Ok(file) = openat(process, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty())
                && let Ok(text) = read_all(&File::from(file), buffer)
            {
                then(text);
            }
        };
        // For each list the kernel walks a table as large as the machine's memory asks for, however short the list is.
        let mut used = [None; 4];
        text("net/sockstat", &mut |text| used[..2].copy_from_slice(&["TCP", "UDP"].map(|of| net::in_use(text, of))));
        text("net/sockstat6", &mut |text| used[2..].copy_from_slice(&["TCP6", "UDP6"].map(|of| net::in_use(text, of))));
        let [tcp, udp, tcp6, udp6] = used;
        let any = |count: Option<u64>| count != Some(0);
        let mut found = Sockets::default();
        if any(tcp) {
            text("net/tcp", &mut |text| net::tcp(text, &mut found.tcp));
        }
        // Those that wait for their end are counted with the older protocol, whichever they are of.
        if any(tcp) || any(tcp6) {
            text("net/tcp6", &mut |text| net::tcp(text, &mut found.tcp6));
        }
        if any(udp) {
            text("net/udp", &mut |text| net::udp(text, &mut found.udp));
        }
        if any(udp6) {
            text("net/udp6", &mut |text| net::udp(text, &mut found.udp6));
        }
        Some(found)
    }

    /// The directory that holds what the container has written, if it runs on an overlay.
    pub(crate) fn upper_dir(&self, root: &Path, docker_root: &Path) -> Option<PathBuf> {
        let process = self.process.as_ref()?;
        let file = openat(process, "mountinfo", OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty()).ok()?;
        let text = io::read_to_string(File::from(file)).ok()?;
        upper_dir(&text, &docker_root.join("overlay2")).map(|dir| under(root, &dir))
    }

    fn failed(&self, what: &str, error: io::Error) -> SourceError {
        if is_gone(&error) {
            SourceError::Gone { container: self.container.clone() }
        } else {
            SourceError::Read { path: Path::new(&self.cgroup).join(what), source: error }
        }
    }
}

fn text_of<'b>(file: Option<&Kept>, buffer: &'b mut Buffer) -> Option<&'b [u8]> {
    file?.read(buffer).ok()
}

fn number_of(file: Option<&Kept>, buffer: &mut Buffer) -> Option<u64> {
    text_of(file, buffer).and_then(parse::number)
}

fn rare(dir: Option<&Path>, name: &str, buffer: &mut Buffer) -> Option<u64> {
    read_once(&dir?.join(name), buffer).ok().and_then(parse::number)
}

/// The sizes that a directory has files of: `hugetlb.2MB.usage_in_bytes` → `2MB`.
fn huge_sizes(dir: &Path, end: &str) -> Vec<String> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut sizes: Vec<String> = names
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(end)?;
            (!size.contains('.')).then(|| size.to_owned())
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

fn huge_pages_v1(dir: &Path, buffer: &mut Buffer) -> Vec<HugePages> {
    let mut page = |size: String| {
        let mut read = |what: &str| rare(Some(dir), &format!("hugetlb.{size}.{what}"), buffer);
        HugePages {
            // Reserved pages are taken from others whether they are touched or not.
            usage_bytes: read("rsvd.usage_in_bytes").or_else(|| read("usage_in_bytes")).unwrap_or(0),
            max_usage_bytes: read("rsvd.max_usage_in_bytes").or_else(|| read("max_usage_in_bytes")).unwrap_or(0),
            failures: read("rsvd.failcnt").or_else(|| read("failcnt")).unwrap_or(0),
            size,
        }
    };
    huge_sizes(dir, ".usage_in_bytes").into_iter().map(&mut page).collect()
}

fn huge_pages_v2(dir: &Path, buffer: &mut Buffer) -> Vec<HugePages> {
    let mut page = |size: String| {
        let mut read = |what: &str| rare(Some(dir), &format!("hugetlb.{size}.{what}"), buffer);
        let usage_bytes = read("rsvd.current").or_else(|| read("current")).unwrap_or(0);
        let events = read_once(&dir.join(format!("hugetlb.{size}.events")), buffer).unwrap_or_default();
        let failures = parse::pairs(events).find(|(key, _)| *key == b"max").map_or(0, |(_, count)| count);
        HugePages { size, usage_bytes, max_usage_bytes: 0, failures }
    };
    huge_sizes(dir, ".current").into_iter().map(&mut page).collect()
}

impl V1 {
    fn read_rest(&self, buffer: &mut Buffer, sample: &mut Sample) {
        let (cpu, memory): (&mut Cpu, &mut Memory) = (&mut sample.cpu, &mut sample.memory);
        if let Some(text) = text_of(self.cpu_split.as_ref(), buffer) {
            cpu::v1_split(text, cpu);
        }
        if let Some(text) = text_of(self.cpu_throttling.as_ref(), buffer) {
            cpu::v1_throttling(text, cpu);
        }
        memory.usage_bytes = number_of(self.memory_usage.as_ref(), buffer).unwrap_or(0);
        if let Some(text) = text_of(self.memory_stat.as_ref(), buffer) {
            memory::v1_stat(text, memory);
        }
        if let Some(text) = text_of(self.memory_oom.as_ref(), buffer) {
            memory::v1_oom(text, memory);
        }
        let devices: &mut Vec<BlockDevice> = &mut sample.block;
        if let Some(text) = text_of(self.block_bytes.as_ref(), buffer) {
            parse::io::v1(text, parse::io::V1::Bytes, devices);
        }
        // What moved no bytes made no requests; without the file of bytes nobody knows.
        if (self.block_bytes.is_none() || !devices.is_empty())
            && let Some(text) = text_of(self.block_requests.as_ref(), buffer)
        {
            parse::io::v1(text, parse::io::V1::Requests, devices);
        }
        sample.pids.threads = number_of(self.pids.as_ref(), buffer).unwrap_or(0);
    }

    fn limits(&self, buffer: &mut Buffer, seldom: &mut Rare) -> Limits {
        let (cpu, memory, pids) = (self.cpu_dir.as_deref(), self.memory_dir.as_deref(), self.pids_dir.as_deref());
        seldom.max_usage_bytes = rare(memory, "memory.max_usage_in_bytes", buffer).unwrap_or(0);
        seldom.limit_hits = rare(memory, "memory.failcnt", buffer).unwrap_or(0);
        seldom.kernel_bytes = rare(memory, "memory.kmem.usage_in_bytes", buffer).unwrap_or(0);
        let memory_bytes = derive::limit(rare(memory, "memory.limit_in_bytes", buffer));
        let swap_file_bytes = derive::limit(rare(memory, "memory.memsw.limit_in_bytes", buffer));
        Limits {
            cpu_shares: rare(cpu, "cpu.shares", buffer).unwrap_or(0),
            // "-1", no quota, is not a number here.
            cpu_quota_us: rare(cpu, "cpu.cfs_quota_us", buffer),
            cpu_period_us: rare(cpu, "cpu.cfs_period_us", buffer).unwrap_or(0),
            memory_bytes,
            reservation_bytes: derive::limit(rare(memory, "memory.soft_limit_in_bytes", buffer)),
            swap_bytes: swap_file_bytes.zip(memory_bytes).map(|(both, memory)| both.saturating_sub(memory)),
            swap_file_bytes,
            threads: rare(pids, "pids.max", buffer),
            open_files: None,
        }
    }
}

impl V2 {
    fn read_rest(&self, buffer: &mut Buffer, sample: &mut Sample) {
        let memory = &mut sample.memory;
        memory.usage_bytes = number_of(self.memory_usage.as_ref(), buffer).unwrap_or(0);
        if let Some(text) = text_of(self.memory_stat.as_ref(), buffer) {
            memory::v2_stat(text, memory);
        }
        if let Some(text) = text_of(self.memory_events.as_ref(), buffer) {
            memory::v2_events(text, memory);
        }
        memory.swap_bytes = number_of(self.memory_swap.as_ref(), buffer).unwrap_or(0);
        if let Some(text) = text_of(self.block.as_ref(), buffer) {
            parse::io::v2(text, &mut sample.block);
        }
        sample.pids.threads = number_of(self.pids.as_ref(), buffer).unwrap_or(0);
    }

    fn limits(&self, buffer: &mut Buffer, seldom: &mut Rare) -> Limits {
        let dir = Some(self.dir.as_path());
        seldom.max_usage_bytes = rare(dir, "memory.peak", buffer).unwrap_or(0);
        let (mut quota, mut period) = (None, 0);
        if let Ok(text) = read_once(&self.dir.join("cpu.max"), buffer) {
            let mut words = parse::words(text);
            quota = words.next().and_then(parse::number);
            period = words.next().and_then(parse::number).unwrap_or(0);
        }
        let swap_bytes = derive::limit(rare(dir, "memory.swap.max", buffer));
        Limits {
            cpu_shares: rare(dir, "cpu.weight", buffer).map_or(0, derive::shares),
            cpu_quota_us: quota,
            cpu_period_us: period,
            memory_bytes: derive::limit(rare(dir, "memory.max", buffer)),
            reservation_bytes: derive::limit(rare(dir, "memory.min", buffer)),
            swap_bytes,
            swap_file_bytes: swap_bytes,
            threads: rare(dir, "pids.max", buffer),
            open_files: None,
        }
    }
}
