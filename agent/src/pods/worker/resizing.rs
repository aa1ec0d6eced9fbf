//! Wishes for other resources than a pod has: judged, put off, granted.

use k8s_openapi::api::core::v1::PodSpec;
use windlass_kit::objects::resources::{Class, class};

use super::*;

impl Worker {
    /// Judges a wish for other resources, and sees when it has come true; gives when to judge again.
    pub(super) fn settle_resize(&mut self, now: Timestamp) -> Option<Timestamp> {
        let pod = self.pod.clone().filter(|p| p.metadata.deletion_timestamp.is_none() && !self.gone)?;
        let pod_spec = pod.spec.as_ref()?;
        let over = self.released || spec::is_terminal(spec::phase(&pod));
        if over || !resize::is_due(pod_spec, &self.observed) {
            if self.observed.resize.take() == Some(Verdict::Granted) {
                self.shared.event(&pod, None, Severity::Normal, "ResizeCompleted", "Pod resize completed");
                self.shared.metrics.completed_resizes.add([]);
            }
            self.put_off_at = None;
            let holds = !over && (self.observed.ended.is_none() || self.observed.runs());
            self.shared.hold(&self.uid, holds.then(|| Claim::of(&pod)));
            return None;
        }
        match &self.observed.resize {
            Some(Verdict::Granted | Verdict::Infeasible(_)) => return None,
            Some(Verdict::Deferred(_)) if self.judge_at.is_some_and(|at| at > now) => return self.judge_at,
            _ => {}
        }
        // One that was put off before the agent began keeps its place.
        let first = self.put_off_at.get_or_insert(resize::pending_since(&pod).unwrap_or(now));
        let wish = resize::Wish { claim: Claim::of(&pod), since: *first };
        let has = Claim::of(&resize::as_held(&pod, &self.observed));
        let verdict = self.shared.judge(&self.uid, has, wish);
        if self.observed.resize.as_ref() != Some(&verdict) {
            let (severity, reason, message) = match &verdict {
                Verdict::Granted => (Severity::Normal, "ResizeStarted", "Pod resize started".to_owned()),
                Verdict::Deferred(why) => (Severity::Warning, "ResizeDeferred", format!("Pod resize deferred: {why}")),
                Verdict::Infeasible(why) => {
                    self.shared.metrics.infeasible_resizes.add([]);
                    (Severity::Warning, "ResizeInfeasible", format!("Pod resize infeasible: {why}"))
                }
            };
            self.shared.event(&pod, None, severity, reason, message);
        }
        let deferred = matches!(verdict, Verdict::Deferred(_));
        if !deferred {
            self.put_off_at = None;
        }
        if verdict == Verdict::Granted {
            self.allocate(pod_spec);
        }
        self.observed.resize = Some(verdict);
        self.judge_at = deferred.then(|| later(now, DEFERRED_RETRY));
        self.judge_at
    }

    /// What the containers of a pod have, before anything else is wished for.
    pub(super) fn learn_allocated(&mut self, pod: &Pod) {
        let Some(pod_spec) = &pod.spec else { return };
        let recorded = Allocated::read(&self.shared.pod_dir(&self.uid));
        if recorded.is_some() {
            self.observed.allocated = recorded;
            return;
        }
        let holds_nothing = self.observed.ended.is_some()
            || pod.metadata.deletion_timestamp.is_some()
            || spec::is_over(pod)
            || class(pod_spec) == Class::BestEffort;
        if holds_nothing {
            return;
        }
        // What ran before there was a record has what Docker holds it to; a new pod was taken in with all of it.
        if let Some(held) = &resize::as_held(pod, &self.observed).spec {
            self.allocate(held);
        }
    }

    fn allocate(&mut self, pod_spec: &PodSpec) {
        let allocated = Allocated::of(pod_spec);
        allocated.keep(&self.shared.pod_dir(&self.uid));
        self.observed.allocated = Some(allocated);
    }

    /// The pod with the resources that it has while its wish for others is put off.
    pub(super) fn pod_as_held(&self) -> Option<Arc<Pod>> {
        let pod = self.pod.as_ref()?;
        let held = resize::is_put_off(&self.observed).then(|| Arc::new(resize::as_held(pod, &self.observed)));
        Some(held.unwrap_or_else(|| Arc::clone(pod)))
    }
}
