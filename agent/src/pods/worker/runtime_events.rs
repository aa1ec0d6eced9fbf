//! What a worker learns from the container engine's events and lists.

use std::sync::Arc;

use super::{RuntimeEvent, Worker};
use crate::{
    engine::{
        containers::Listed,
        events::{Changed, EventAction},
        inspect::{Exit, Instance, State},
    },
    pods::{
        lifecycle::{spec, step_key::StepKey, time::normalize_times},
        steps,
    },
};

impl Worker {
    /// Stores the engine's state of a container.
    pub(super) fn upsert(&mut self, mut instance: Instance) {
        let now = self.now();
        if self.observed.is_outdated(&instance) {
            return;
        }
        if instance.exit().is_some() {
            self.cancel_hooks(&instance.id);
        }
        if self.observed.begins(&instance) {
            self.begun(&instance);
        }
        let known = self.observed.instance(&instance.id);
        if let Some(user) = known.and_then(|k| k.user.as_ref()) {
            instance.user = Some(user.clone());
        }
        self.observed.upsert(normalize_times(instance, known, self.clock_was_set, now));
    }

    /// A container was started, whether the step that did so has heard of it or not.
    pub(super) fn begun(&self, instance: &Instance) {
        if let Some(pod) = self.pod_with_actual_resources() {
            steps::begun(&self.context, &pod, instance);
        }
    }

    /// The engine no longer has a container, by whatever evidence: the host resources used only by it are removed.
    pub(super) fn forget(&mut self, id: &str) {
        let Some(gone) = self.observed.remove(id).filter(|gone| !gone.is_sandbox()) else { return };
        let goes_on = !self.is_terminating()
            && self.observed.kill.is_none()
            && !self.pod.as_deref().is_some_and(spec::is_terminal);
        let is_last = self.observed.newest(&gone.identity.container).is_none();
        steps::gone(&self.context, &gone, goes_on && is_last);
    }

    pub(super) fn on_runtime_event(&mut self, event: RuntimeEvent) {
        match event {
            RuntimeEvent::Changed(changed) => self.on_changed(changed),
            RuntimeEvent::GcExited => self.observed.gc_exited = true,
            RuntimeEvent::Listed(listed) => self.on_listed(&listed),
        }
    }

    fn on_changed(&mut self, Changed { id, action, .. }: Changed) {
        let known = self.observed.instance(&id);
        let is_known = match action {
            EventAction::Started => known.is_some_and(Instance::is_running),
            EventAction::Died => known.is_some_and(|i| i.exit().is_some()),
            EventAction::Destroyed => known.is_none(),
            EventAction::OutOfMemory => {
                let ended = known.filter(|instance| instance.exit().is_some()).cloned();
                self.observed.out_of_memory.insert(id);
                ended.into_iter().for_each(|instance| self.observed.upsert(instance));
                return;
            }
        };
        if action == EventAction::Died
            && self.is_terminating()
            && let Some(sandbox) = known.filter(|i| i.is_sandbox() && i.is_running()).cloned()
        {
            // The exit code of a sandbox means nothing, and Docker is busy removing it.
            let state = State::Exited(Exit::killed(self.now()));
            self.upsert(Instance { state, ..sandbox });
            return;
        }
        // A step in flight inspects the container when it is done, but may have inspected it before it died.
        let busy = self.observed.in_flight.contains(&StepKey::Container(id.clone()));
        if !is_known && (!busy || action == EventAction::Died) {
            self.inspect(id);
        } else if !is_known && action == EventAction::Destroyed {
            self.observed.unread.insert(id);
        }
    }

    /// Inspects the containers that differ from the engine's list, or are not on it.
    fn on_listed(&mut self, listed: &[Listed]) {
        let differs = |l: &&Listed| self.observed.instance(&l.id).is_none_or(|i| i.is_running() != l.running);
        let differing = listed.iter().filter(differs).map(|l| l.id.clone());
        let is_gone = |i: &&Instance| !listed.iter().any(|l| l.id == i.id);
        let vanished = self.observed.instances.iter().filter(is_gone).map(|i| i.id.clone());
        let ids: Vec<String> = differing.chain(vanished).collect();
        for id in ids {
            self.inspect(id);
        }
    }

    /// Inspects what is to be inspected again.
    pub(super) fn inspect_due(&mut self) {
        for id in self.observed.take_unread() {
            self.inspect(id);
        }
    }

    /// Has the engine inspect a container; again afterwards where it is being inspected already.
    pub(super) fn inspect(&mut self, id: String) {
        let key = StepKey::Inspect(id.clone());
        if self.observed.in_flight.contains(&key) {
            self.observed.unread.insert(id);
        } else {
            self.push(key, steps::inspect(Arc::clone(&self.context), id));
        }
    }
}
