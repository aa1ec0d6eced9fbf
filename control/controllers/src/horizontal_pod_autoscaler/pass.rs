//! One pass over an autoscaler: upstream's `reconcileAutoscaler` without what it reads and writes. Pure: may not import
//! tokio or kube's client.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::autoscaling::v2::{
        HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    conditions::{self, Condition},
    messages::{self, Message, SelectorProblem},
    normalize::{Behavior, Bounds, History, normalize},
    proposals::{Failure, Proposal},
    replica_calculator::Tolerances,
};

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing; the status is complete.
    Rest,
    /// The metrics are needed.
    Measure,
    /// Another size is to be written.
    Rescale { size: i32, reason: String },
}

/// How a pass ended, as metrics count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    ScaleUp,
    ScaleDown,
    None,
}

/// What kept a pass from its end, as metrics count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Spec,
    Internal,
    None,
}

/// An autoscaler, and what the pass has found so far.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    spec: &'a HorizontalPodAutoscalerSpec,
    behavior: Option<Behavior>,
    now: Timestamp,
    /// The size that the scale asks for.
    current: i32,
    pub(super) status: HorizontalPodAutoscalerStatus,
    pub(super) events: Vec<Message>,
    pub(super) action: Action,
    pub(super) fault: Fault,
    /// The size at the end, if the pass got there.
    pub(super) decided: Option<i32>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(autoscaler: &'a HorizontalPodAutoscaler, now: Timestamp) -> Self {
        let spec = &autoscaler.spec;
        Self {
            spec,
            behavior: spec.behavior.as_ref().map(Behavior::of),
            now,
            current: 0,
            status: autoscaler.status.clone().unwrap_or_default(),
            events: Vec::new(),
            action: Action::None,
            fault: Fault::None,
            decided: None,
        }
    }

    pub(super) fn metrics(&self) -> &'a [MetricSpec] {
        self.spec.metrics.as_deref().unwrap_or_default()
    }

    pub(super) fn tolerances(&self) -> Tolerances {
        self.behavior.as_ref().map_or_else(Tolerances::default, Behavior::tolerances)
    }

    fn set(&mut self, condition: Condition) {
        conditions::set(self.status.conditions.get_or_insert_default(), condition, self.now);
    }

    /// The scale of the target could not be read.
    pub(super) fn no_scale(&mut self, why: &str, fault: Fault) {
        self.events.push(messages::failed_get_scale(why));
        self.set(messages::no_scale(why));
        self.fault = fault;
    }

    /// The scale of the target asks for `current` replicas.
    pub(super) fn begin(&mut self, current: i32, history: &mut History, steady: Duration) -> Next {
        self.current = current;
        self.set(messages::got_scale());
        history.start(current, steady);
        let (least, most) = (self.least(), self.spec.max_replicas);
        let rescale = |size, reason: &str| Next::Rescale { size, reason: reason.to_owned() };
        if current == 0 && least != 0 {
            self.set(messages::scaling_disabled());
            self.end(0, Vec::new());
            Next::Rest
        } else if current > most {
            rescale(most, messages::ABOVE_MAXIMUM)
        } else if current < least {
            rescale(least, messages::BELOW_MINIMUM)
        } else {
            Next::Measure
        }
    }

    fn least(&self) -> i32 {
        self.spec.min_replicas.unwrap_or(1)
    }

    /// The pods of the target cannot be determined.
    pub(super) fn unselectable(&mut self, problem: &SelectorProblem) {
        self.events.push(problem.event());
        self.set(problem.condition());
        self.give_up(&problem.text(), Vec::new());
    }

    /// All metrics have been evaluated: `computeReplicasForMetrics`.
    pub(super) fn measured(
        &mut self,
        proposals: Vec<Result<Proposal, Failure>>,
        history: &mut History,
        steady: Duration,
    ) -> (Next, Vec<MetricStatus>) {
        let all = proposals.len();
        let (mut best, mut statuses): (Option<(i32, String)>, _) = (None, Vec::with_capacity(all));
        let mut failures: Vec<Failure> = Vec::new();
        for proposal in proposals {
            match proposal {
                Ok(Proposal { count, metric, status }) => {
                    statuses.push(status);
                    if best.as_ref().is_none_or(|(highest, _)| *highest == 0 || count > *highest) {
                        best = Some((count, metric));
                    }
                }
                Err(failure) => {
                    // Its place stays empty, as upstream leaves it.
                    statuses.push(MetricStatus::default());
                    self.events.push(messages::warning(failure.reason, failure.text.clone()));
                    failures.push(failure);
                }
            }
        }
        let error = failures.first().map(|first| messages::invalid_metrics(failures.len(), all, &first.error));
        let best = match (best, failures.first()) {
            // What is not known might ask for what the others would take away.
            (None, Some(first)) => Err(first),
            (Some((count, _)), Some(first)) if count < self.current => Err(first),
            (best, _) => Ok(best),
        };
        let (wanted, metric) = match best {
            Ok(Some((count, metric))) => {
                self.set(messages::valid_metric_found(&metric));
                (count, metric)
            }
            // The API has a default for no metrics at all.
            Ok(None) => (self.current, String::new()),
            Err(first) => {
                self.set(messages::unable_to_compute(first.reason, &first.text));
                self.give_up(&error.unwrap_or_default(), statuses);
                return (Next::Rest, Vec::new());
            }
        };
        if error.is_some() {
            self.fault = Fault::Internal;
        }
        let bounds = Bounds { current: self.current, least: self.least(), most: self.spec.max_replicas };
        let normalized = normalize(wanted, &bounds, self.behavior.as_ref(), history, steady);
        normalized.conditions.into_iter().for_each(|condition| self.set(condition));
        let size = normalized.desired;
        if size == self.current {
            self.end(size, statuses);
            return (Next::Rest, Vec::new());
        }
        let reason = match wanted {
            wanted if wanted > self.current => messages::above_target(&metric),
            wanted if wanted < self.current => messages::ALL_BELOW_TARGET.to_owned(),
            _ => String::new(),
        };
        (Next::Rescale { size, reason }, statuses)
    }

    /// No size could be computed.
    fn give_up(&mut self, why: &str, statuses: Vec<MetricStatus>) {
        self.events.push(messages::failed_compute(why));
        self.fault = Fault::Internal;
        self.status.current_replicas = Some(self.current);
        self.status.current_metrics = Some(statuses);
    }

    /// The scale asks for another size now.
    pub(super) fn rescaled(
        &mut self,
        size: i32,
        reason: &str,
        statuses: Vec<MetricStatus>,
        history: &mut History,
        steady: Duration,
    ) {
        self.set(messages::updated_scale(size));
        self.events.push(messages::rescaled(size, reason));
        if let Some(behavior) = &self.behavior {
            history.scaled(self.current, size, behavior.longest_period(), steady);
        }
        self.action = if size > self.current { Action::ScaleUp } else { Action::ScaleDown };
        self.status.last_scale_time = Some(Time(self.now));
        self.end(size, statuses);
    }

    /// The scale refused another size.
    pub(super) fn not_rescaled(&mut self, size: i32, reason: &str, why: &str, statuses: Vec<MetricStatus>) {
        self.events.push(messages::failed_rescale(size, reason, why));
        self.set(messages::no_update_of_scale(why));
        self.fault = Fault::Internal;
        self.status.current_replicas = Some(self.current);
        self.status.current_metrics = Some(statuses);
    }

    fn end(&mut self, desired: i32, statuses: Vec<MetricStatus>) {
        self.decided = Some(desired);
        self.status.current_replicas = Some(self.current);
        self.status.desired_replicas = desired;
        self.status.current_metrics = Some(statuses);
    }
}

/// Whether two statuses say the same.
pub(super) fn same_status(one: &HorizontalPodAutoscalerStatus, other: &HorizontalPodAutoscalerStatus) -> bool {
    one.current_replicas.unwrap_or(0) == other.current_replicas.unwrap_or(0)
        && one.desired_replicas == other.desired_replicas
        && one.last_scale_time == other.last_scale_time
        && one.current_metrics.as_deref().unwrap_or_default() == other.current_metrics.as_deref().unwrap_or_default()
        && one.conditions.as_deref().unwrap_or_default() == other.conditions.as_deref().unwrap_or_default()
}
