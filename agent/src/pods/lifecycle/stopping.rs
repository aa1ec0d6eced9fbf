//! How one container is stopped: its preStop hook first, then the signal. Two actions, since sidecars run their hooks at
//! once and are stopped one after the other. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;

use super::{
    action::{Action, Plan},
    observed::Observed,
    spec,
    step_key::StepKey,
    time::after_grace,
};
use crate::engine::inspect::Instance;

/// What every container has left at least, in seconds, when it is stopped after its hook or in its turn; upstream's.
pub(super) const MIN_GRACE: i64 = 2;

/// The order to stop an instance.
#[derive(Debug, Clone)]
pub(super) struct StopOrder<'a> {
    pub(super) instance: &'a Instance,
    /// In seconds.
    pub(super) grace: i64,
    /// The event's, the usual one where it is empty.
    pub(super) message: String,
    /// Its turn has not come: only its hook runs.
    pub(super) hook_only: bool,
}

impl<'a> StopOrder<'a> {
    pub(super) fn new(instance: &'a Instance, grace: i64, message: impl Into<String>) -> Self {
        Self { instance, grace, message: message.into(), hook_only: false }
    }

    /// The next action that stops the instance, if there is one now. A hook is cut when the grace period is over, which
    /// began with it.
    pub(super) fn plan(self, spec: Option<&PodSpec>, observed: &Observed, now: Timestamp, plan: &mut Plan) {
        let Self { instance, grace, message, hook_only } = self;
        let (container, id) = (instance.identity.container.clone(), instance.id.clone());
        let until = observed.stopping.get(&id).copied();
        if observed.in_flight.contains(&StepKey::PreStop(id.clone())) {
            let asked = after_grace(now, grace);
            match until.filter(|until| grace > 0 && *until > now) {
                None => plan.push(Action::CutPreStop { id }),
                Some(until) if until > after_grace(now, grace.saturating_add(1)) => {
                    plan.push(Action::ShortenPreStop { id, grace });
                    plan.wake(asked);
                }
                Some(until) => plan.wake(until),
            }
            return;
        }
        let hook = spec.and_then(|spec| spec::find_container(spec, &container)).and_then(spec::pre_stop);
        if hook.is_some() && grace > 0 && !observed.pre_stop_done.contains(&id) {
            plan.push(Action::PreStop { container, id, grace, message });
        } else if !hook_only {
            // The hook, or an earlier try, has used up a part.
            let left = until.map_or(grace, |until| until.duration_since(now).as_secs());
            let grace = left.clamp(MIN_GRACE.min(grace).max(0), grace.max(0));
            plan.push(Action::Stop { container, id, grace, message });
        }
    }
}
