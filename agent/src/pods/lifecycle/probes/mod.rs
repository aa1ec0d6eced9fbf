//! Probes: which are due for a running container and when, and what their results mean. Pure; `steps::prober` runs
//! them.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};

use super::time::{saturating_add, shift};
use crate::engine::inspect::{Instance, State};

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ProbeType {
    /// Whether the container has started; the others wait for it.
    Startup,
    /// Whether the container is alive; if not, it is restarted.
    Liveness,
    /// Whether the container may get traffic.
    Readiness,
}

impl ProbeType {
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// Its name in events and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    pub(crate) fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

/// The results of one probe of one container so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeRecord {
    /// The container's id: another instance starts over.
    id: String,
    /// The effective result, which changes when a threshold is reached.
    result: bool,
    /// The last result.
    last: bool,
    /// Equal results in a row.
    run: i32,
    at: Timestamp,
}

impl ProbeRecord {
    pub(crate) fn shift_times(&mut self, by: jiff::SignedDuration) {
        self.at = shift(self.at, by);
    }
}

/// The records of a pod, by container and probe.
pub(crate) type ProbeRecords = BTreeMap<(String, ProbeType), ProbeRecord>;

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).unwrap_or(default))
}

/// How long one run of a probe may take.
pub(crate) fn timeout(probe: &Probe) -> Duration {
    seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1))
}

/// The status that the API has of exactly this instance: it carries results across a restart of the agent.
pub(super) fn reported_status<'a>(pod: &'a Pod, instance: &Instance) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let id = instance.container_id();
    all.into_iter().find(|c| c.name == instance.identity.container && c.container_id.as_ref() == Some(&id))
}

/// The effective result of a probe for a running instance; true where the container has no such probe.
pub(crate) fn result(
    pod: &Pod,
    container: &Container,
    probe_type: ProbeType,
    instance: &Instance,
    records: &ProbeRecords,
) -> bool {
    if probe_type.of(container).is_none() {
        return true;
    }
    let key = (container.name.clone(), probe_type);
    if let Some(record) = records.get(&key).filter(|r| r.id == instance.id) {
        return record.result;
    }
    match probe_type {
        ProbeType::Liveness => true,
        ProbeType::Startup => reported_status(pod, instance).is_some_and(|c| c.started == Some(true)),
        ProbeType::Readiness => reported_status(pod, instance).is_some_and(|c| c.ready),
    }
}

/// The startup or liveness probe whose failure threshold is reached: the instance must be killed.
pub(crate) fn failed_probe(container: &Container, instance: &Instance, records: &ProbeRecords) -> Option<ProbeType> {
    [ProbeType::Startup, ProbeType::Liveness].into_iter().find(|probe_type| {
        let Some(probe) = probe_type.of(container) else { return false };
        let record = records.get(&(container.name.clone(), *probe_type)).filter(|r| r.id == instance.id);
        record.is_some_and(|r| !r.last && r.run >= probe.failure_threshold.unwrap_or(3).max(1))
    })
}

/// The delay of the first probe of an instance that was adopted: a part of the period that depends on its id, so that
/// probes of the node are not run all at once, then and ever after.
fn initial_jitter(instance: &Instance, probe_type: ProbeType, period: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (&instance.id, probe_type).hash(&mut hasher);
    let part = u32::try_from(hasher.finish() >> 32).unwrap_or(0);
    period.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

/// The probes that a running instance needs, each with when it is due. `started` says that its postStart hook and its
/// startup probe have succeeded; `terminating` that the pod is; `adopted_at` when this agent adopted what ran before
/// it.
pub(crate) fn schedule(
    container: &Container,
    instance: &Instance,
    records: &ProbeRecords,
    started: bool,
    terminating: bool,
    adopted_at: Option<Timestamp>,
) -> Vec<(ProbeType, Timestamp)> {
    let State::Running { started_at, .. } = instance.state else { return Vec::new() };
    if failed_probe(container, instance, records).is_some() {
        return Vec::new();
    }
    let wanted = ProbeType::ALL.into_iter().filter(|probe_type| match probe_type {
        ProbeType::Startup => !started && !terminating,
        ProbeType::Liveness => started && !terminating,
        ProbeType::Readiness => started,
    });
    wanted
        .filter_map(|probe_type| {
            let probe = probe_type.of(container)?;
            let record = records.get(&(container.name.clone(), probe_type)).filter(|r| r.id == instance.id);
            let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
            let first = saturating_add(started_at, seconds(probe.initial_delay_seconds, 0));
            let adopted_at = adopted_at.filter(|at| started_at < *at);
            let first = adopted_at
                .map_or(first, |at| first.max(saturating_add(at, initial_jitter(instance, probe_type, period))));
            Some((probe_type, record.map_or(first, |r| saturating_add(r.at, period))))
        })
        .collect()
}

/// Records that a probe could not be run: its result stays, and it is run again a period later.
pub(crate) fn record_unknown(
    pod: &Pod,
    container: &Container,
    probe_type: ProbeType,
    instance: &Instance,
    at: Timestamp,
    records: &mut ProbeRecords,
) {
    let result = result(pod, container, probe_type, instance, records);
    let unknown = ProbeRecord { id: instance.id.clone(), result, last: result, run: 0, at };
    let record = records.entry((container.name.clone(), probe_type)).or_insert_with(|| unknown.clone());
    if record.id == instance.id {
        record.at = at;
    } else {
        *record = unknown;
    }
}

/// Records a result.
pub(crate) fn record_result(
    pod: &Pod,
    container: &Container,
    probe_type: ProbeType,
    instance: &Instance,
    success: bool,
    at: Timestamp,
    records: &mut ProbeRecords,
) {
    let Some(probe) = probe_type.of(container) else { return };
    let before = result(pod, container, probe_type, instance, records);
    let key = (container.name.clone(), probe_type);
    let earlier = records.get(&key).filter(|r| r.id == instance.id && r.last == success);
    let run = earlier.map_or(1, |r| r.run.saturating_add(1));
    let enough = if success { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
    let result = if run >= enough.max(1) { success } else { before };
    records.insert(key, ProbeRecord { id: instance.id.clone(), result, last: success, run, at });
}

/// The grace period in seconds for killing a container whose probe failed, where the probe sets one.
pub(crate) fn termination_grace(container: &Container, probe_type: ProbeType) -> Option<i64> {
    probe_type.of(container).and_then(|p| p.termination_grace_period_seconds)
}
