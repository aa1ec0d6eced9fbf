//! The system containers of the summary: daemons of the node, and all pods together.

use super::{
    super::{Pod, PodTotal, View},
    ContainerStats, CpuStats, Time, memory,
};

/// The daemons and all pods, by name.
pub(super) fn containers(view: &View, pods: &[Pod<'_>]) -> Vec<ContainerStats> {
    let snapshot = &view.snapshot;
    let mut list: Vec<ContainerStats> = snapshot
        .system
        .iter()
        .map(|row| ContainerStats {
            name: row.name.clone(),
            start_time: Time(row.started_at),
            cpu: Some(CpuStats {
                time: Time(row.moment.wall),
                usage_nano_cores: row.usage_nano_cores,
                usage_core_nano_seconds: row.cpu.usage_ns,
                psi: None,
            }),
            memory: row.memory.map(|used| memory(Time(row.moment.wall), &used, None, None)),
            io: None,
            rootfs: None,
            logs: None,
            swap: None,
        })
        .collect();
    list.extend(all_pods(view, pods));
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}

/// All pods together: their cgroup, which also has what ended ones have left there, or else the sum of those that run.
/// What is available is what is left of the limit of all pods.
fn all_pods(view: &View, pods: &[Pod<'_>]) -> Option<ContainerStats> {
    let snapshot = &view.snapshot;
    let totals: Vec<_> = pods.iter().filter_map(Pod::total).collect();
    let own = snapshot.all_pods.as_deref();
    let of_own = own.map(|own| own.sample.moment.wall);
    let at = of_own.or_else(|| totals.iter().map(|total| total.at).max())?;
    let time = Time(at);
    let sum = |of: fn(&PodTotal) -> u64| totals.iter().map(of).fold(0, u64::saturating_add);
    let summed = || {
        totals.iter().filter_map(|total| total.memory).reduce(|mut sum, memory| {
            sum.add(&memory);
            sum
        })
    };
    let used = own.map_or_else(summed, |own| own.sample.memory);
    let limit = view.pods_memory_bytes.or(Some(snapshot.machine.memory_bytes)).filter(|bytes| *bytes > 0);
    Some(ContainerStats {
        name: "pods".to_owned(),
        start_time: Time(pods.iter().map(|pod| pod.started_at).min().unwrap_or(at)),
        cpu: Some(CpuStats {
            time,
            usage_nano_cores: own
                .map_or_else(|| Some(sum(|total| total.usage_nano_cores.unwrap_or(0))), |own| own.usage_nano_cores),
            usage_core_nano_seconds: own.map_or_else(|| sum(|total| total.cpu.usage_ns), |own| own.sample.cpu.usage_ns),
            psi: None,
        }),
        memory: used.map(|used| memory(time, &used, limit, None)),
        io: None,
        rootfs: None,
        logs: None,
        swap: None,
    })
}
