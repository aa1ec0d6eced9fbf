//! One read of one cgroup, on a thread of the pool: opens its files unless they are open, and reads them.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;
use windlass_kit::moment::Moment;

use crate::{
    config::{Config, EngineDirs, Target},
    model::{Limits, Sample, SlowStats},
    parse::cgroup::Layout,
    source::{Buffer, ContainerFiles, SourceError, Totals},
};

/// What all reads share.
#[derive(Debug)]
pub(super) struct ReadContext {
    pub(super) root: PathBuf,
    pub(super) engine_dirs: watch::Receiver<EngineDirs>,
    pub(super) layout: Option<Layout>,
}

impl ReadContext {
    pub(super) fn new(config: &Config, layout: Option<Layout>) -> Self {
        Self { root: config.root.clone(), engine_dirs: config.engine_dirs.clone(), layout }
    }
}

/// Which cgroup to read.
#[derive(Debug)]
pub(super) enum CgroupRef {
    Container(Arc<Target>),
    /// A pod's own, by its path.
    Pod(Arc<str>),
}

#[derive(Debug)]
pub(super) struct ReadJob {
    pub(super) cgroup: CgroupRef,
    pub(super) files: Option<Box<ContainerFiles>>,
    /// Also read the counters that change slowly.
    pub(super) slow: bool,
    /// Also read the limits.
    pub(super) limits: bool,
    /// Its writable layer is unknown: Docker may report it relative to its data root, which was unknown, too.
    pub(super) wants_layer: bool,
    /// The machine-wide counters, read before this job.
    pub(super) totals: Arc<Totals>,
}

#[derive(Debug)]
pub(super) struct ReadResult {
    /// `None` when the cgroup was removed or could not be opened.
    pub(super) files: Option<Box<ContainerFiles>>,
    /// The writable layer, when this job opened the files.
    pub(super) opened: Option<Option<PathBuf>>,
    /// The writable layer, when it was found later.
    pub(super) layer: Option<PathBuf>,
    /// Boxed, since most jobs are without it.
    pub(super) slow: Option<Box<SlowStats>>,
    pub(super) limits: Option<Box<Limits>>,
    pub(super) result: Result<Sample, SourceError>,
}

thread_local! {
    /// Grows to the longest file and keeps that size.
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
}

/// Executes a job.
pub(super) fn read(context: &ReadContext, job: ReadJob) -> ReadResult {
    BUFFER.with_borrow_mut(|buffer| read_cgroup(context, job, buffer))
}

fn read_cgroup(context: &ReadContext, job: ReadJob, buffer: &mut Buffer) -> ReadResult {
    let failed =
        |error| ReadResult { files: None, opened: None, layer: None, slow: None, limits: None, result: Err(error) };
    let (mut files, opened) = match job.files {
        Some(files) => (files, None),
        None => match open(context, &job.cgroup, buffer) {
            Ok(files) => {
                let layer = layer_of(context, &files);
                (Box::new(files), Some(layer))
            }
            Err(error) => return failed(error),
        },
    };
    let first = opened.is_some();
    let all = job.slow || first;
    let layer = (job.slow && job.wants_layer && !first).then(|| layer_of(context, &files)).flatten();
    // What fails here is due again at the next read, which is complete or fails as a whole.
    let limits = (job.limits || first).then(|| files.read_limits(buffer).ok().map(Box::new)).flatten();
    let slow = all.then(|| files.slow(&context.root, buffer).ok().map(Box::new)).flatten();
    let mut sample = Sample::empty(Moment::now());
    let result = files.read(all, &job.totals, buffer, &mut sample).map(|()| sample);
    // The files of a removed cgroup are closed.
    let files = if matches!(result, Err(SourceError::Removed { .. })) { None } else { Some(files) };
    ReadResult { files, opened, layer, slow, limits, result }
}

fn layer_of(context: &ReadContext, files: &ContainerFiles) -> Option<PathBuf> {
    let data_root = context.engine_dirs.borrow().data_root.clone();
    files.upper_dir(&context.root, data_root.as_deref())
}

fn open(context: &ReadContext, cgroup: &CgroupRef, buffer: &mut Buffer) -> Result<ContainerFiles, SourceError> {
    let no_cgroups = || SourceError::NoCgroups { path: Path::new("/proc/self/mountinfo").to_owned() };
    let layout = context.layout.as_ref().ok_or_else(no_cgroups)?;
    match cgroup {
        CgroupRef::Container(target) => ContainerFiles::open(&context.root, layout, target, buffer),
        CgroupRef::Pod(path) => ContainerFiles::open_pod(&context.root, layout, path),
    }
}
