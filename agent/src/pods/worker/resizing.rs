//! Wishes for other resources than a pod has: judged, put off, granted.

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
        let first = self.put_off_at.get_or_insert(now);
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
        self.observed.resize = Some(verdict);
        self.judge_at = deferred.then(|| later(now, DEFERRED_RETRY));
        self.judge_at
    }

    /// The pod with the resources that it has while its wish for others is put off.
    pub(super) fn pod_as_held(&self) -> Option<Arc<Pod>> {
        let pod = self.pod.as_ref()?;
        let held = resize::is_put_off(&self.observed).then(|| Arc::new(resize::as_held(pod, &self.observed)));
        Some(held.unwrap_or_else(|| Arc::clone(pod)))
    }
}
