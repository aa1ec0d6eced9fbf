//! Probes: what is asked of a running container and when, and what the answers mean. Pure; `handlers` asks.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};

use super::observed::later;
use crate::engine::instance::{Instance, State};

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Whether the container has begun its work; the others wait for it.
    Startup,
    /// Whether it still works; if not, it is restarted.
    Liveness,
    /// Whether it may get traffic.
    Readiness,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// As events name it.
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

/// What the answers of one probe of one container have come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The container that was asked: another instance begins anew.
    id: String,
    /// What counts; the answers before enough of them came in a row change nothing.
    result: bool,
    last: bool,
    /// Equal answers in a row.
    run: i32,
    at: Timestamp,
}

impl Record {
    pub(crate) fn clock_was_set(&mut self, by: jiff::SignedDuration) {
        self.at = super::clock::moved(self.at, by);
    }
}

/// The records of a pod, by container and probe.
pub(crate) type Records = BTreeMap<(String, Kind), Record>;

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).unwrap_or(default))
}

/// How long one question may take.
pub(crate) fn timeout(probe: &Probe) -> Duration {
    seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1))
}

/// What the API last said of exactly this instance: so results outlive our own restart.
fn carried<'a>(pod: &'a Pod, instance: &Instance) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let id = format!("docker://{}", instance.id);
    all.into_iter().find(|c| c.name == instance.identity.container && c.container_id.as_ref() == Some(&id))
}

/// The result that counts for a running instance.
pub(crate) fn result(pod: &Pod, container: &Container, kind: Kind, instance: &Instance, records: &Records) -> bool {
    if kind.of(container).is_none() {
        return true;
    }
    let key = (container.name.clone(), kind);
    if let Some(record) = records.get(&key).filter(|r| r.id == instance.id) {
        return record.result;
    }
    match kind {
        Kind::Liveness => true,
        Kind::Startup => carried(pod, instance).is_some_and(|c| c.started == Some(true)),
        Kind::Readiness => carried(pod, instance).is_some_and(|c| c.ready),
    }
}

/// Whether a probe says that this instance must be ended, and which.
pub(crate) fn condemned(container: &Container, instance: &Instance, records: &Records) -> Option<Kind> {
    [Kind::Startup, Kind::Liveness].into_iter().find(|kind| {
        let Some(probe) = kind.of(container) else { return false };
        let record = records.get(&(container.name.clone(), *kind)).filter(|r| r.id == instance.id);
        record.is_some_and(|r| !r.last && r.run >= probe.failure_threshold.unwrap_or(3).max(1))
    })
}

/// When an instance that ran before the agent did is first asked: at a part of the period that is its own, so that not
/// all of the node are asked at once, then and ever after.
fn spread(instance: &Instance, kind: Kind, period: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (&instance.id, kind).hash(&mut hasher);
    let part = u32::try_from(hasher.finish() >> 32).unwrap_or(0);
    period.mul_f64(f64::from(part) / f64::from(u32::MAX))
}

/// The probes of a running instance that are to be asked, each with when: now or later. `started` tells whether
/// hooks and the startup probe are behind it; `ending` that the pod is being deleted; `found_at` when this agent found
/// what ran before it.
pub(crate) fn schedule(
    container: &Container,
    instance: &Instance,
    records: &Records,
    started: bool,
    ending: bool,
    found_at: Option<Timestamp>,
) -> Vec<(Kind, Timestamp)> {
    let State::Running { started_at, .. } = instance.state else { return Vec::new() };
    if condemned(container, instance, records).is_some() {
        return Vec::new();
    }
    let wanted = Kind::ALL.into_iter().filter(|kind| match kind {
        Kind::Startup => !started && !ending,
        Kind::Liveness => started && !ending,
        Kind::Readiness => started,
    });
    wanted
        .filter_map(|kind| {
            let probe = kind.of(container)?;
            let record = records.get(&(container.name.clone(), kind)).filter(|r| r.id == instance.id);
            let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
            let first = later(started_at, seconds(probe.initial_delay_seconds, 0));
            let found_at = found_at.filter(|at| started_at < *at);
            let first = found_at.map_or(first, |at| first.max(later(at, spread(instance, kind, period))));
            Some((kind, record.map_or(first, |r| later(r.at, period))))
        })
        .collect()
}

/// Takes note that a probe could not be asked: what counted counts on, and it is asked again in its time.
pub(crate) fn unanswered(
    pod: &Pod,
    container: &Container,
    kind: Kind,
    instance: &Instance,
    at: Timestamp,
    records: &mut Records,
) {
    let result = result(pod, container, kind, instance, records);
    let unasked = Record { id: instance.id.clone(), result, last: result, run: 0, at };
    let record = records.entry((container.name.clone(), kind)).or_insert_with(|| unasked.clone());
    if record.id == instance.id {
        record.at = at;
    } else {
        *record = unasked;
    }
}

/// Takes an answer in.
pub(crate) fn note(
    pod: &Pod,
    container: &Container,
    kind: Kind,
    instance: &Instance,
    success: bool,
    at: Timestamp,
    records: &mut Records,
) {
    let Some(probe) = kind.of(container) else { return };
    let before = result(pod, container, kind, instance, records);
    let key = (container.name.clone(), kind);
    let earlier = records.get(&key).filter(|r| r.id == instance.id && r.last == success);
    let run = earlier.map_or(1, |r| r.run.saturating_add(1));
    let enough = if success { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
    let result = if run >= enough.max(1) { success } else { before };
    records.insert(key, Record { id: instance.id.clone(), result, last: success, run, at });
}

/// The grace for ending a container that a probe condemned.
pub(crate) fn grace(container: &Container, kind: Kind) -> Option<i64> {
    kind.of(container).and_then(|p| p.termination_grace_period_seconds)
}
