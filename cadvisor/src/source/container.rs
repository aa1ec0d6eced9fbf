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
    Rare, SourceError,
    cgroup_v1::V1,
    cgroup_v2::V2,
    kept::{Buffer, Kept, is_gone, read_all, read_once, text_of},
    moved_nothing,
    node::Totals,
    pressure::PressureFiles,
    under,
};
use crate::{
    config::Subject,
    model::{Limits, Sample, Seldom, Sockets, Tasks},
    parse::{
        self,
        cgroup::{Layout, Mode, cut_at, path_of, pod_of, upper_dir},
        net, pids,
    },
};

/// Processes looked at when descriptors are counted, and links read of each: a bound on the cost of one round.
const PROCESSES_MOST: usize = 64;
const LINKS_MOST: usize = 512;

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
    /// Path of the pod's own cgroup, when the container's lies in one.
    pub(crate) pod_cgroup: Option<String>,
    version: Version,
    processes: Option<Kept>,
    pressure: PressureFiles,
    /// `/proc/PID`: stays this process's even if the number is used again.
    process: Option<File>,
    /// Interfaces, where they are the container's own. Keeps the network namespace until the container is known to have ended.
    network: Option<Kept>,
    /// What was read in full last: it holds while the container sleeps.
    last: Option<Box<Sample>>,
    /// The process lives in the network namespace of the node.
    pub(crate) host_network: bool,
    rare: Rare,
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
        let pressure = PressureFiles::open(unified.as_deref());
        let (version, processes) = match layout.mode {
            Mode::V2 => {
                let files = unified.and_then(V2::open).ok_or_else(gone)?;
                let processes = Kept::open(&files.dir, "cgroup.procs");
                (Version::V2(files), processes)
            }
            Mode::V1 | Mode::Hybrid => {
                let files = V1::open(&v1_dir).ok_or_else(gone)?;
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
            last: None,
            host_network: false,
            rare: Rare::default(),
        })
    }

    /// Reads everything that changes by the second. The CPU counter comes first and stands for the sample's time. `all`
    /// says that nothing is to be taken from before; `totals` were read before this.
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
            Some(mut last) if !all && has_slept(&last, sample) => {
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
                let mut kept = last.unwrap_or_else(|| Box::new(Sample::empty(sample.at, sample.mono_ns)));
                (*kept).clone_from(sample);
                self.last = Some(kept);
            }
        }
        // Packets come in whether it sleeps or not.
        // A dead sandbox has no network; its cgroup tells on the next round.
        if let Some(text) = text_of(self.network.as_ref(), buffer) {
            net::devices(text, &mut sample.network);
        }
        Ok(())
    }

    /// `last` is what was read before, where that need not be read again as a whole.
    fn read_rest(&mut self, last: Option<&Sample>, totals: &Totals, buffer: &mut Buffer, sample: &mut Sample) {
        match &self.version {
            Version::V1(files) => files.read_rest(last, totals, &mut self.rare, buffer, sample),
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
    }

    /// Reads what it is held to.
    pub(crate) fn read_limits(&mut self, buffer: &mut Buffer) -> Limits {
        let mut limits = match &self.version {
            Version::V1(files) => files.limits(buffer, &mut self.rare),
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

    /// Counts what nobody watches by the second, or what costs a walk over the container's processes or sockets.
    pub(crate) fn seldom(&mut self, root: &Path, buffer: &mut Buffer) -> Seldom {
        match &self.version {
            Version::V1(files) => files.counters(buffer, &mut self.rare),
            Version::V2(files) => files.counters(buffer, &mut self.rare),
        }
        let mut found = Seldom {
            huge_pages: match &self.version {
                Version::V1(files) => files.huge_pages(buffer),
                Version::V2(files) => files.huge_pages(buffer),
            },
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

/// Whether nothing of a container has run since `last` was read: it used no CPU time, holds as much memory and moved no
/// block. What else is counted of it is as it was.
fn has_slept(last: &Sample, now: &Sample) -> bool {
    last.cpu.usage_ns == now.cpu.usage_ns
        && last.memory.usage_bytes == now.memory.usage_bytes
        && moved_nothing(&last.block, &now.block)
}
