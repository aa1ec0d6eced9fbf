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
    cgroup_v1::{self, V1},
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

/// Processes, descriptors and links of descriptors that are looked at for one sample. Beyond them the count is unknown: a
/// number that stands still would look like one.
const MAX_PROCESSES: usize = 4096;
const MAX_DESCRIPTORS: u64 = 65_536;
const MAX_LINKS: u64 = 16_384;
/// Interfaces reported per network namespace: a container may create as many as it wants.
const MAX_INTERFACES: usize = 128;

#[derive(Debug)]
enum Version {
    V1(V1),
    V2(V2),
}

impl Version {
    fn lacks_controllers(&self) -> bool {
        match self {
            Self::V1(files) => files.lacks_controllers(),
            Self::V2(files) => files.lacks_controllers(),
        }
    }
}

/// Where a cgroup's files are.
#[derive(Debug)]
struct Dirs {
    mode: Mode,
    v1: cgroup_v1::Dirs,
    unified: Option<PathBuf>,
}

/// The open files of a cgroup.
#[derive(Debug)]
struct CgroupFiles {
    version: Version,
    processes: Option<CachedFile>,
    pressure: PressureFiles,
}

impl CgroupFiles {
    /// Opens the files that exist; `None` if the cgroup does not.
    fn open(dirs: &Dirs) -> io::Result<Option<Self>> {
        let (version, list) = if dirs.mode == Mode::V2 {
            let Some(dir) = &dirs.unified else { return Ok(None) };
            (V2::open(dir)?.map(Version::V2), Some(dir))
        } else {
            let [cpuacct, _, memory, ..] = &dirs.v1;
            (V1::open(&dirs.v1)?.map(Version::V1), memory.as_ref().or(cpuacct.as_ref()))
        };
        let Some(version) = version else { return Ok(None) };
        let processes = list.map_or(Ok(None), |dir| CachedFile::open(dir, "cgroup.procs"))?;
        let unified = dirs.unified.as_deref().filter(|_| dirs.mode != Mode::V1);
        Ok(Some(Self { version, processes, pressure: PressureFiles::open(unified)? }))
    }
}

/// Open files of one container, or of a pod's own cgroup.
#[derive(Debug)]
pub(crate) struct ContainerFiles {
    container: String,
    /// Path of the cgroup (of the memory controller on v1).
    pub(crate) cgroup: String,
    /// Path of the pod's own cgroup, when it contains the container's.
    pub(crate) pod_cgroup: Option<String>,
    dirs: Dirs,
    files: CgroupFiles,
    /// `/proc/PID`: refers to this process even if its id is reused.
    process: Option<File>,
    /// Interfaces, where the container has its own network namespace, which stays alive until the end of the container
    /// is known.
    network: Option<CachedFile>,
    /// The last complete sample: it stays valid while the container is idle.
    last: Option<Box<Sample>>,
    /// The process is in the network namespace of the node.
    pub(crate) host_network: bool,
    /// It has more interfaces than are reported.
    pub(crate) cut: bool,
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
            files.network =
                CachedFile::open(&process_dir, "net/dev").map_err(|error| files.failed("net/dev", error))?;
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
        let dirs = Dirs { mode: layout.mode, v1: cgroup_v1::CONTROLLERS.map(v1_dir), unified };
        let broken = |source| SourceError::Read { path: PathBuf::from(&cgroup), source };
        let files = CgroupFiles::open(&dirs).map_err(broken)?.ok_or_else(removed)?;
        Ok(Self {
            container: container.to_owned(),
            cgroup,
            pod_cgroup: None,
            dirs,
            files,
            process: None,
            network: None,
            last: None,
            host_network: false,
            cut: false,
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
        let mut result = self.read_files(all, totals, buffer, sample);
        if result.as_ref().is_err_and(|error| self.reopens(error)) {
            *sample = Sample::empty(sample.moment);
            result = self.read_files(true, totals, buffer, sample);
        }
        result.map_err(|error| self.failed("its cgroup's files", error))?;
        // Packets arrive whether it is idle or not.
        match text_of(self.network.as_ref(), buffer) {
            Ok(Some(text)) => {
                net::devices(text, &mut sample.network);
                self.cut = sample.network.len() > MAX_INTERFACES;
                sample.network.truncate(MAX_INTERFACES);
            }
            Ok(None) => {}
            // The network of an exited sandbox is not readable; its cgroup fails at the next housekeeping.
            Err(error) if is_removed(&error) => {}
            Err(error) => return Err(self.failed("net/dev", error)),
        }
        Ok(())
    }

    /// Reads the files of the cgroup.
    fn read_files(&mut self, all: bool, totals: &Totals, buffer: &mut Buffer, sample: &mut Sample) -> io::Result<()> {
        match &self.files.version {
            Version::V1(files) => files.read(buffer, sample),
            Version::V2(files) => files.read(buffer, sample),
        }?;
        match self.last.take() {
            Some(mut last) if !all && was_idle(&last, sample) => {
                (sample.cpu, sample.memory, sample.pids) = (last.cpu, last.memory, last.pids);
                sample.block.clone_from(&last.block);
                last.pressure = self.files.pressure.read(false, Some(&last.pressure), &totals.pressure, buffer)?;
                sample.pressure = last.pressure;
                self.last = Some(last);
            }
            last => {
                let before = last.as_deref().filter(|_| !all);
                self.read_rest(before, totals, buffer, sample)?;
                let pressure = before.map(|last| &last.pressure);
                sample.pressure = self.files.pressure.read(true, pressure, &totals.pressure, buffer)?;
                let mut last = last.unwrap_or_else(|| Box::new(Sample::empty(sample.moment)));
                (*last).clone_from(sample);
                self.last = Some(last);
            }
        }
        Ok(())
    }

    /// `last` is the previous sample, where it may be reused.
    fn read_rest(
        &mut self,
        last: Option<&Sample>,
        totals: &Totals,
        buffer: &mut Buffer,
        sample: &mut Sample,
    ) -> io::Result<()> {
        match &self.files.version {
            Version::V1(files) => files.read_rest(last, totals, &mut self.slow_files, buffer, sample),
            Version::V2(files) => files.read_rest(buffer, sample),
        }?;
        if let Some(memory) = &mut sample.memory {
            // It was read a while ago.
            memory.max_usage_bytes = self.slow_files.max_usage_bytes.map_or(0, |most| most.max(memory.usage_bytes));
            memory.limit_hits = self.slow_files.limit_hits;
            if let Version::V1(_) = self.files.version {
                memory.kernel_bytes = self.slow_files.kernel_bytes;
            }
        }
        // A single thread is a single process. Otherwise cgroup.procs is read, which the kernel builds and sorts.
        let pids = &mut sample.pids;
        if pids.threads == Some(1) {
            pids.processes = Some(1);
        } else if let Some(text) = text_of(self.files.processes.as_ref(), buffer)? {
            pids.processes = Some(pids::count(text));
            pids.threads = pids.threads.max(pids.processes);
        }
        Ok(())
    }

    /// Opens the files again after a failed read, where they are others by now: of a controller that was switched off and on
    /// again, or of a cgroup that was removed and made again, as systemd does with the slices of pods.
    fn reopens(&mut self, error: &io::Error) -> bool {
        let reopened = if is_removed(error) { CgroupFiles::open(&self.dirs).ok().flatten() } else { None };
        let Some(files) = reopened else { return false };
        self.files = files;
        self.last = None;
        true
    }

    /// Opens the files of controllers that were not there before.
    fn reopen_if_lacking(&mut self) {
        if self.files.version.lacks_controllers()
            && let Ok(Some(files)) = CgroupFiles::open(&self.dirs)
        {
            self.files = files;
        }
    }

    /// Reads the limits.
    pub(crate) fn read_limits(&mut self, buffer: &mut Buffer) -> io::Result<Limits> {
        let mut limits = match &self.files.version {
            Version::V1(files) => files.limits(buffer, &mut self.slow_files),
            Version::V2(files) => files.limits(buffer),
        }?;
        if let Some(process) = &self.process
            && let Ok(file) = openat(process, "limits", OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty())
            && let Ok(text) = read_all(&File::from(file), buffer)
        {
            limits.open_files = parse::machine::open_files(text);
        }
        Ok(limits)
    }

    /// Reads counters that change slowly, or whose read walks over the container's processes or sockets.
    pub(crate) fn slow(&mut self, root: &Path, buffer: &mut Buffer) -> io::Result<SlowStats> {
        self.reopen_if_lacking();
        let (version, slow) = (&self.files.version, &mut self.slow_files);
        match version {
            Version::V1(files) => files.counters(buffer, slow),
            Version::V2(files) => files.counters(buffer, slow),
        }?;
        let huge_pages = match version {
            Version::V1(files) => files.huge_pages(buffer),
            Version::V2(files) => files.huge_pages(buffer),
        }?;
        let mut found = SlowStats { huge_pages, sockets_of: self.sockets(buffer), ..SlowStats::default() };
        let Some(text) = text_of(self.files.processes.as_ref(), buffer)? else { return Ok(found) };
        let ids: Vec<u64> = pids::ids(text).take(MAX_PROCESSES + 1).collect();
        if ids.len() <= MAX_PROCESSES {
            let processes = || ids.iter().map(|pid| root.join(format!("proc/{pid}")));
            found.tasks = Some(states(processes(), buffer));
            // Since Linux 6.2 the size of the directory is the number of descriptors.
            let counted = |dir: &Path| std::fs::metadata(dir).map_or(0, |dir| dir.len());
            (found.files, found.sockets) = descriptors(processes(), counted, MAX_DESCRIPTORS, MAX_LINKS);
        }
        Ok(found)
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
    pub(crate) fn upper_dir(&self, root: &Path, data_root: Option<&Path>) -> Option<PathBuf> {
        let process = self.process.as_ref()?;
        let file = openat(process, "mountinfo", OFlag::O_RDONLY | OFlag::O_CLOEXEC, FileMode::empty()).ok()?;
        let text = io::read_to_string(File::from(file)).ok()?;
        upper_dir(&text, data_root.map(|dir| dir.join("overlay2")).as_deref()).map(|dir| under(root, &dir))
    }

    fn failed(&self, what: &str, error: io::Error) -> SourceError {
        if is_removed(&error) {
            SourceError::Removed { container: self.container.clone() }
        } else {
            SourceError::Read { path: Path::new(&self.cgroup).join(what), source: error }
        }
    }
}

/// The states of processes; one that has ended meanwhile has none.
fn states(processes: impl Iterator<Item = PathBuf>, buffer: &mut Buffer) -> Tasks {
    let mut tasks = Tasks::default();
    for process in processes {
        if let Ok(text) = read_once(&process.join("stat"), buffer) {
            pids::state(text, &mut tasks);
        }
    }
    tasks
}

/// Open files of processes, and how many of them are sockets; `None` when there are too many to look at. `counted` is
/// the kernel's entry count of a directory of descriptors, or 0.
pub(super) fn descriptors(
    processes: impl Iterator<Item = PathBuf>,
    counted: impl Fn(&Path) -> u64,
    max_entries: u64,
    max_links: u64,
) -> (Option<u64>, Option<u64>) {
    let (mut files, mut sockets, mut entries, mut links) = (Some(0), Some(0), 0, 0);
    for process in processes {
        let dir = process.join("fd");
        let counted = counted(&dir);
        let Ok(inside) = std::fs::read_dir(&dir) else { continue };
        let mut own = 0;
        if counted == 0 || counted.saturating_add(links) <= max_links {
            for entry in inside.flatten() {
                (own, entries, links) = (own + 1, entries + 1, links + 1);
                if links > max_links || entries > max_entries {
                    break;
                }
                let link = std::fs::read_link(entry.path());
                if link.is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket")) {
                    sockets = sockets.map(|sockets| sockets + 1);
                }
            }
        } else {
            links = max_links + 1;
        }
        if links > max_links || entries > max_entries {
            sockets = None;
        }
        let own = if counted > 0 {
            Some(counted)
        } else {
            Some(own).filter(|_| entries <= max_entries && links <= max_links)
        };
        files = files.zip(own).map(|(all, own)| all + own);
    }
    (files, sockets)
}

/// Whether no process of a container has run since `last` was read: same CPU time, same memory, no bytes of block
/// devices. Then its other counters are unchanged, too.
fn was_idle(last: &Sample, now: &Sample) -> bool {
    let used = |sample: &Sample| sample.memory.map(|memory| memory.usage_bytes);
    last.cpu.usage_ns == now.cpu.usage_ns && used(last) == used(now) && no_transfer(&last.block, &now.block)
}
