//! The cgroups of the node's own: of all pods, and of the engine. Their files stay open from one housekeeping to the next.

use std::{collections::HashMap, sync::Arc};

use windlass_kit::moment::Moment;

use super::{Sampler, cgroup_state::point, reading::ReadContext};
use crate::{
    history::{History, Point},
    model::{Cpu, Memory, Sample, SystemCgroup, SystemRow},
    parse::cgroup::Layout,
    source::{self, Buffer, ContainerFiles, Totals},
};

#[derive(Debug, Default)]
pub(super) struct SystemCgroups(HashMap<Arc<str>, (Box<ContainerFiles>, History)>);

impl SystemCgroups {
    /// Samples a cgroup; `None` when it cannot be read.
    pub(super) fn sample(
        &mut self,
        context: &ReadContext,
        path: &Arc<str>,
        totals: &Totals,
        buffer: &mut Buffer,
    ) -> Option<Arc<SystemCgroup>> {
        if !self.0.contains_key(path) {
            let layout: &Layout = context.layout.as_ref()?;
            let files = ContainerFiles::open_pod(&context.root, layout, path).ok()?;
            self.0.insert(Arc::clone(path), (Box::new(files), History::default()));
        }
        let (files, history) = self.0.get_mut(path)?;
        let mut sample = Sample::empty(Moment::now());
        if let Err(error) = files.read(false, totals, buffer, &mut sample) {
            tracing::debug!(%error, cgroup = &**path, "failed to read a cgroup of the node");
            self.0.remove(path);
            return None;
        }
        history.push(point(&sample));
        Some(Arc::new(SystemCgroup { path: Arc::clone(path), usage_nano_cores: history.nano_cores(), sample }))
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.0.retain(|path, _| wanted(path));
    }
}

/// The path of the cgroup of all pods, by that of one pod's own: its element `kubepods`, with systemd `kubepods.slice`.
pub(super) fn all_pods_of(pod: &str) -> Option<&str> {
    let mut end = 0;
    for part in pod.split('/') {
        end += part.len();
        if part == "kubepods" || part.ends_with("kubepods.slice") {
            return pod.get(..end);
        }
        end += 1;
    }
    None
}

/// Whether a cgroup is that of daemons alone: not the root, and no container is in it.
pub(super) fn is_of_daemons<'a>(path: &str, mut containers: impl Iterator<Item = &'a str>) -> bool {
    path != "/" && !containers.any(|inner| inner.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
}

/// The row of a daemon by its cgroups, which count all of its processes.
pub(super) fn by_cgroups(row: &mut SystemRow, cgroups: &[Arc<SystemCgroup>]) {
    let Some(first) = cgroups.first() else { return };
    let sum = |of: fn(&Cpu) -> u64| cgroups.iter().map(|one| of(&one.sample.cpu)).fold(0, u64::saturating_add);
    row.cpu = Cpu {
        usage_ns: sum(|cpu| cpu.usage_ns),
        user_ns: sum(|cpu| cpu.user_ns),
        system_ns: sum(|cpu| cpu.system_ns),
        ..Cpu::default()
    };
    row.moment = first.sample.moment;
    let memory = cgroups.iter().filter_map(|one| one.sample.memory).reduce(|mut sum: Memory, memory| {
        sum.add(&memory);
        sum
    });
    row.memory = memory.or(row.memory);
}

impl Sampler {
    /// Samples the cgroup of all pods, and those of the engine: of its daemon, and of the shims of containers, which may be
    /// those of another containerd.
    pub(super) fn sample_system_cgroups(&mut self) {
        let (context, buffer) = (Arc::clone(&self.context), &mut self.buffer);
        let Some(layout) = &context.layout else { return };
        let all_pods = self.cgroups.any_pod().and_then(|pod| all_pods_of(&pod.cgroup)).map(Arc::from);
        let daemons = self.config.system_processes.iter().filter(|process| process.pid_file.is_some());
        let daemons =
            daemons.filter_map(|process| source::daemon_pid(&context.root, process, buffer)).collect::<Vec<_>>();
        let shim = self.cgroups.containers().find(|state| state.row.is_some()).map(|state| state.target.pid);
        let shim = shim.and_then(|pid| source::parent_pid(&context.root, pid, buffer)).filter(|_| !daemons.is_empty());
        let mut paths: Vec<Arc<str>> = Vec::new();
        for pid in daemons.into_iter().chain(shim) {
            let Some(path) = source::cgroup_of(&context.root, layout, pid, buffer) else { continue };
            let containers = self.cgroups.containers().map(|state| &*state.cgroup);
            if is_of_daemons(&path, containers) && !paths.iter().any(|known| **known == *path) {
                paths.push(Arc::from(path));
            }
        }
        self.system_cgroups.retain(|path| all_pods.as_deref() == Some(path) || paths.iter().any(|own| **own == *path));
        let mut sample = |path: &Arc<str>| self.system_cgroups.sample(&context, path, &self.totals, buffer);
        self.runtime_cgroups = Arc::new(paths.iter().filter_map(&mut sample).collect());
        self.all_pods = all_pods.as_ref().and_then(sample);
    }

    /// Samples the daemons.
    pub(super) fn sample_system(&mut self) -> Vec<SystemRow> {
        let mut rows = Vec::with_capacity(self.config.system_processes.len());
        for process in &self.config.system_processes {
            let now = Moment::now();
            let row = source::daemon(&self.config.root, process, self.machine.booted_at, now, &mut self.buffer);
            // A daemon that does not run has no row; that is not logged at each housekeeping.
            let Ok(mut row) = row else { continue };
            if process.pid_file.is_some() {
                by_cgroups(&mut row, &self.runtime_cgroups);
            }
            let history = self.system.entry(process.name.clone()).or_default();
            history.push(Point { mono_ns: now.mono_ns, cpu_ns: row.cpu.usage_ns, ..Point::default() });
            row.usage_nano_cores = history.nano_cores();
            rows.push(row);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_all_pods_is_above_each() {
        for (pod, all) in [
            ("/kubepods/burstable/pod1", Some("/kubepods")),
            ("/kubepods/pod1", Some("/kubepods")),
            ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice", Some("/kubepods.slice")),
            ("/work.slice/work-kubepods.slice/work-kubepods-pod1.slice", Some("/work.slice/work-kubepods.slice")),
            ("/inner/kubepods/pod1", Some("/inner/kubepods")),
            ("/docker/1", None),
        ] {
            assert_eq!(all_pods_of(pod), all, "{pod}");
        }
    }

    #[test]
    fn a_cgroup_with_containers_is_not_the_daemons_own() {
        let containers = || ["/kubepods/pod1/a", "/system.slice/docker-b.scope"].into_iter();
        assert!(is_of_daemons("/system.slice/docker.service", containers()));
        assert!(!is_of_daemons("/", containers()) && !is_of_daemons("/system.slice", containers()));
        assert!(is_of_daemons("/kube", containers()));
    }
}
