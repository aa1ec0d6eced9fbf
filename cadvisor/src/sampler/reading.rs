//! One look at one cgroup, on a thread of the lane: opens its files when they are not open yet, and reads them.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use crate::{
    config::{Config, Subject},
    model::{Limits, Sample, Seldom},
    parse::cgroup::Layout,
    source::{Buffer, ContainerFiles, SourceError, Totals},
};

/// What all looks have alike.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) root: PathBuf,
    pub(super) docker_root: PathBuf,
    pub(super) layout: Option<Layout>,
    /// What the monotonic times count from.
    pub(super) clock: Instant,
}

impl Surroundings {
    pub(super) fn new(config: &Config, layout: Option<Layout>, clock: Instant) -> Self {
        Self { root: config.root.clone(), docker_root: config.docker_root.clone(), layout, clock }
    }

    pub(super) fn mono_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Whose cgroup.
#[derive(Debug)]
pub(super) enum Whose {
    Container(Arc<Subject>),
    /// A pod's own, by its path.
    Pod(Arc<str>),
}

#[derive(Debug)]
pub(super) struct Look {
    pub(super) whose: Whose,
    pub(super) files: Option<Box<ContainerFiles>>,
    /// What is read now and then is to be read too.
    pub(super) seldom: bool,
    /// So are its limits.
    pub(super) limits: bool,
    /// The machine's, from before this look.
    pub(super) totals: Arc<Totals>,
}

#[derive(Debug)]
pub(super) struct Seen {
    /// None when the cgroup is gone or could not be opened.
    pub(super) files: Option<Box<ContainerFiles>>,
    /// The writable layer, when the files were opened by this look.
    pub(super) opened: Option<Option<PathBuf>>,
    /// Apart, for most looks are without.
    pub(super) seldom: Option<Box<Seldom>>,
    pub(super) limits: Option<Box<Limits>>,
    pub(super) result: Result<Sample, SourceError>,
}

thread_local! {
    /// Grows to the longest file and stays.
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
}

/// Takes the look.
pub(super) fn look(around: &Surroundings, look: Look) -> Seen {
    BUFFER.with_borrow_mut(|buffer| look_into(around, look, buffer))
}

fn look_into(around: &Surroundings, look: Look, buffer: &mut Buffer) -> Seen {
    let failed = |error| Seen { files: None, opened: None, seldom: None, limits: None, result: Err(error) };
    let (mut files, opened) = match look.files {
        Some(files) => (files, None),
        None => match open(around, &look.whose, buffer) {
            Ok(files) => {
                let layer = files.upper_dir(&around.root, &around.docker_root);
                (Box::new(files), Some(layer))
            }
            Err(error) => return failed(error),
        },
    };
    let first = opened.is_some();
    let all = look.seldom || first;
    let limits = (look.limits || first).then(|| Box::new(files.read_limits(buffer)));
    let seldom = all.then(|| Box::new(files.seldom(&around.root, buffer)));
    let mut sample = Sample::empty(jiff::Timestamp::now(), around.mono_ns());
    let result = files.read(all, &look.totals, buffer, &mut sample).map(|()| sample);
    // What is gone keeps no files open.
    let files = if matches!(result, Err(SourceError::Gone { .. })) { None } else { Some(files) };
    Seen { files, opened, seldom, limits, result }
}

fn open(around: &Surroundings, whose: &Whose, buffer: &mut Buffer) -> Result<ContainerFiles, SourceError> {
    let no_cgroups = || SourceError::NoCgroups { path: Path::new("/proc/self/mountinfo").to_owned() };
    let layout = around.layout.as_ref().ok_or_else(no_cgroups)?;
    match whose {
        Whose::Container(subject) => ContainerFiles::open(&around.root, layout, subject, buffer),
        Whose::Pod(path) => ContainerFiles::open_pod(&around.root, layout, path),
    }
}
