//! The files of one container: found through `/proc/PID/cgroup`, last open, read at each housekeeping.

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
    SlowFiles, SourceError,
    cached_file::{Buffer, CachedFile, is_removed, read_all, read_once, text_of},
    cgroup_v1::V1,
    cgroup_v2::V2,
    no_transfer,
    node::Totals,
    pressure::PressureFiles,
    under,
};
use crate::{
    config::Target,
    model::{Limits, Sample, SlowStats, Sockets, Tasks},
    parse::{
        self,
        cgroup::{Layout, Mode, cut_at, path_of, pod_of, upper_dir},
        net, pids,
    },
};

/// Processes whose descriptors are counted, and links read of each: bounds the cost of one sample.
const MAX_PROCESSES: usize = 64;
const MAX_LINKS_PER_PROCESS: usize = 512;

#[derive(Debug)]
enum Version {
    V1(V1),
    V2(V2),
}

/// Open files of one container, or of a pod's own cgroup.
#[derive(Debug)]
pub(crate) struct ContainerFiles {
    container: String,
    /// Path of the cgroup (of the memory controller on v1).
    pub(crate) cgroup: String,
    /// Path of the pod's own cgroup, when it contains the container's.
    pub(crate) pod_cgroup: Option<String>,
    version: Version,
    processes: Option<CachedFile>,
    pressure: PressureFiles,
    /// `/proc/PID`: refers to this process even if its id is reused.
    process: Option<File>,
    /// Interfaces, where the container has its own network namespace, which stays alive until the end of the container
    /// is known.
    network: Option<CachedFile>,
    /// The last complete sample: it stays valid while the container is idle.
    last: Option<Box<Sample>>,
    /// The process is in the network namespace of the node.
    pub(crate) host_network: bool,
    slow_files: SlowFiles,
}

impl ContainerFiles {
    /// Finds and opens the cgroup of a container through its init process.
    pub(crate) fn open(
        root: &Path,
        layout: &Layout,
        target: &Target,
        buffer: &mut Buffer,
    ) -> Result<Self, SourceError> {
        let not_there = || SourceError::NotInCgroup { pid: target.pid, container: target.container_id.clone() };
        let process_dir = root.join(format!("proc/{}", target.pid));
        let process = File::open(&process_dir).map_err(|_| not_there())?;
        let text = read_once(&process_dir.join("cgroup"), buffer).map_err(|_| not_there())?.to_vec();
        let cut = |controller: &str| path_of(&text, controller).and_then(|path| cut_at(path, &target.container_id));
        let main = if layout.mode == Mode::V2 { cut("") } else { cut("memory").or_else(|| cut("cpuacct")) };
        let cgroup = main.ok_or_else(not_there)?.to_owned();
        let pod_cgroup = pod_of(&cgroup, &target.pod_uid).map(str::to_owned);
        let v1_dir = |controller: &str| {
            cut(controller).and_then(|path| layout.v1_dir(controller, path)).map(|dir| under(root, &dir))
        };
        let v2_dir = || cut("").and_then(|path| layout.v2_dir(path)).map(|dir| under(root, &dir));
        let mut files = Self::at(&target.container_id, cgroup, layout, v1_dir, v2_dir)?;
        files.pod_cgroup = pod_cgroup;
        if !target.shares_network && (target.is_sandbox() || target.pod_uid.is_empty()) {
            files.network = CachedFile::open(&process_dir, "net/dev");
        }
        let namespace = |of: &str| std::fs::read_link(root.join("proc").join(of).join("ns/net")).ok();
        files.host_network = namespace(&target.pid.to_string()).is_some_and(|ns| Some(ns) == namespace("self"));
        files.process = Some(process);
        Ok(files)
    }

    /// Opens a pod's own cgroup, which has no processes.
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
        let removed = || SourceError::Removed { container: container.to_owned() };
        let unified = if layout.mode == Mode::V1 { None } else { v2_dir() };
        let pressure = PressureFiles::open(unified.as_deref());
        let (version, processes) = match layout.mode {
            Mode::V2 => {
                let files = unified.and_then(V2::open).ok_or_else(removed)?;
                let processes = CachedFile::open(&files.dir, "cgroup.procs");
                (Version::V2(files), processes)
            }
            Mode::V1 | Mode::Hybrid => {
                let files = V1::open(&v1_dir).ok_or_else(removed)?;
                let processes = v1_dir("memory")
                    .or_else(|| v1_dir("cpuacct"))
                    .and_then(|dir| CachedFile::open(&dir, "cgroup.procs"));
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
            last: None,
            host_network: false,
            slow_files: SlowFiles::default(),
        })
    }

    /// Reads everything that changes fast. The CPU counter is read first, and the time of the sample is its own. `all`
    /// skips no file; `totals` were read before this.
    pub(crate) fn read(
        &mut self,
        all: bool,
        totals: &Totals,
        buffer: &mut Buffer,
        sample: &mut Sample,
    ) -> Result<(), SourceError> {
        let result = match &self.version {
            Version::V1(files) => files.read(buffer, sample),
            Version::V2(files) => files.read(buffer, sample),
        };
        result.map_err(|error| self.failed("cpu usage", error))?;
        match self.last.take() {
            Some(mut last) if !all && was_idle(&last, sample) => {
                (sample.cpu, sample.memory, sample.pids) = (last.cpu, last.memory, last.pids);
                sample.block.clone_from(&last.block);
                last.pressure = self.pressure.read(false, Some(&last.pressure), &totals.pressure, buffer);
                sample.pressure = last.pressure;
                self.last = Some(last);
            }
            last => {
                let before = last.as_deref().filter(|_| !all);
                self.read_rest(before, totals, buffer, sample);
                let pressure = before.map(|last| &last.pressure);
                sample.pressure = self.pressure.read(true, pressure, &totals.pressure, buffer);
                let mut last = last.unwrap_or_else(|| Box::new(Sample::empty(sample.moment)));
                (*last).clone_from(sample);
                self.last = Some(last);
            }
        }
        // Packets arrive whether it is idle or not.
        // The network of an exited sandbox is not readable; its cgroup fails at the next housekeeping.
        if let Some(text) = text_of(self.network.as_ref(), buffer) {
            net::devices(text, &mut sample.network);
        }
        Ok(())
    }

    /// `last` is the previous sample, where it may be reused.
    fn read_rest(&mut self, last: Option<&Sample>, totals: &Totals, buffer: &mut Buffer, sample: &mut Sample) {
        match &self.version {
            Version::V1(files) => files.read_rest(last, totals, &mut self.slow_files, buffer, sample),
            Version::V2(files) => files.read_rest(buffer, sample),
        }
        sample.memory.max_usage_bytes = self.slow_files.max_usage_bytes.max(sample.memory.usage_bytes);
        sample.memory.limit_hits = self.slow_files.limit_hits;
        if let Version::V1(_) = self.version {
            sample.memory.kernel_bytes = self.slow_files.kernel_bytes;
        }
        // A single thread is a single process. Otherwise cgroup.procs is read, which the kernel builds and sorts.
        if sample.pids.threads == 1 {
            sample.pids.processes = 1;
        } else if let Some(text) = text_of(self.processes.as_ref(), buffer) {
            sample.pids.processes = pids::count(text);
            sample.pids.threads = sample.pids.threads.max(sample.pids.processes);
        }
    }

    /// Reads the limits.
    pub(crate) fn read_limits(&mut self, buffer: &mut Buffer) -> Limits {
        let mut limits = match &self.version {
            Version::V1(files) => files.limits(buffer, &mut self.slow_files),
            Version::V2(files) => files.limits(buffer),
        };
        if let Some(process) = &self.process
            && let Ok(file) = openat(process, "limits", OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty())
            && let Ok(text) = read_all(&File::from(file), buffer)
        {
            limits.open_files = parse::machine::open_files(text);
        }
        limits
    }

    /// Reads counters that change slowly, or whose read walks over the container's processes or sockets.
    pub(crate) fn slow(&mut self, root: &Path, buffer: &mut Buffer) -> SlowStats {
        match &self.version {
            Version::V1(files) => files.counters(buffer, &mut self.slow_files),
            Version::V2(files) => files.counters(buffer, &mut self.slow_files),
        }
        let mut found = SlowStats {
            huge_pages: match &self.version {
                Version::V1(files) => files.huge_pages(buffer),
                Version::V2(files) => files.huge_pages(buffer),
            },
            sockets_of: self.sockets(buffer),
            ..SlowStats::default()
        };
        let ids: Vec<u64> = text_of(self.processes.as_ref(), buffer)
            .map(|text| pids::ids(text).take(MAX_PROCESSES).collect())
            .unwrap_or_default();
        for pid in ids {
            self.processes_of(&root.join(format!("proc/{pid}")), buffer, &mut found);
        }
        found
    }

    fn processes_of(&self, process: &Path, buffer: &mut Buffer, found: &mut SlowStats) {
        let tasks: &mut Tasks = &mut found.tasks;
        if let Ok(text) = read_once(&process.join("stat"), buffer) {
            pids::state(text, tasks);
        }
        let Ok(entries) = std::fs::read_dir(process.join("fd")) else { return };
        for (at, entry) in entries.flatten().enumerate() {
            found.files += 1;
            if at < MAX_LINKS_PER_PROCESS
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
        // For each list the kernel walks a hash table sized by the machine's memory, however short the list is.
        let mut used = [None; 4];
        text("net/sockstat", &mut |text| used[..2].copy_from_slice(&["TCP", "UDP"].map(|of| net::in_use(text, of))));
        text("net/sockstat6", &mut |text| used[2..].copy_from_slice(&["TCP6", "UDP6"].map(|of| net::in_use(text, of))));
        let [tcp, udp, tcp6, udp6] = used;
        let any = |count: Option<u64>| count != Some(0);
        let mut found = Sockets::default();
        if any(tcp) {
            text("net/tcp", &mut |text| net::tcp(text, &mut found.tcp));
        }
        // Sockets in TIME_WAIT are counted with IPv4, whichever family they are of.
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

    /// The upper directory of the overlay that the container runs on.
    pub(crate) fn upper_dir(&self, root: &Path, docker_root: &Path) -> Option<PathBuf> {
        let process = self.process.as_ref()?;
        let file = openat(process, "mountinfo", OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty()).ok()?;
        let text = io::read_to_string(File::from(file)).ok()?;
        upper_dir(&text, &docker_root.join("overlay2")).map(|dir| under(root, &dir))
    }

    fn failed(&self, what: &str, error: io::Error) -> SourceError {
        if is_removed(&error) {
            SourceError::Removed { container: self.container.clone() }
        } else {
            SourceError::Read { path: Path::new(&self.cgroup).join(what), source: error }
        }
    }
}

/// Whether no process of a container has run since `last` was read: same CPU time, same memory, no bytes of block
/// devices. Then its other counters are unchanged, too.
fn was_idle(last: &Sample, now: &Sample) -> bool {
    last.cpu.usage_ns == now.cpu.usage_ns
        && last.memory.usage_bytes == now.memory.usage_bytes
        && no_transfer(&last.block, &now.block)
}
