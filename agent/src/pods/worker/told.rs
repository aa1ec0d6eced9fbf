//! What a worker tells: the status to the API, events, and the rest of the agent which containers run.

use super::*;

impl Worker {
    /// Sends the status if it differs from what the API has; gives when to look again.
    pub(super) fn write_status(&mut self, now: Timestamp) -> Option<Timestamp> {
        let pod = self.pod.clone().filter(|_| !self.gone)?;
        let under_way = &self.observed.in_flight;
        // Once the API is asked to forget the pod there is nobody to tell.
        if under_way.contains(&Key::Status) || under_way.contains(&Key::Forget) || self.observed.forgotten {
            return None;
        }
        let before = pod.status.clone().unwrap_or_default();
        let wanted = status::status(&pod, &self.observed, self.shared.config.node_ips, now);
        if wanted.phase.as_deref().is_some_and(spec::is_terminal) {
            self.release();
        }
        let (object, before, merged) = if spec::is_static(&pod) {
            self.keep_status(&pod, &before, &wanted);
            let mirror = self.mirror.clone()?;
            let shown = mirror.status.clone().unwrap_or_default();
            let merged = merge(&shown, &wanted);
            (mirror, shown, merged)
        } else {
            let merged = merge(&before, &wanted);
            (pod, before, merged)
        };
        let Some(patch) = patch_of(&object, &before, &merged) else {
            self.gathers_since = None;
            return None;
        };
        if let Some(at) = self.patch_after.filter(|at| *at > now) {
            return Some(at);
        }
        if can_wait(&before, &merged, self.is_ending()) {
            let since = *self.gathers_since.get_or_insert(now);
            let until = gathers_until(since, self.observed.in_flight.iter().any(Key::is_of_docker));
            if until > now {
                return Some(until);
            }
        }
        self.gathers_since = None;
        if !spec::is_static(&object) {
            self.tell_turns(&object, &before, &wanted);
        }
        let (client, metrics) = (self.shared.client.clone(), Arc::clone(&self.shared.metrics));
        self.push(Key::Status, async move {
            let api: Api<Pod> = Api::namespaced(client, spec::namespace(&object));
            let begun = tokio::time::Instant::now();
            let result = api.patch_status(spec::name(&object), &PatchParams::default(), &Patch::Strategic(patch)).await;
            metrics.status_sync.took([], begun.elapsed());
            Outcome::Patched { from: version(&object), result: result.map(|pod| Box::new(spec::received(pod))) }
        });
        None
    }

    /// The status of a static pod is the worker's own: the API may be away, and its image there may be new.
    fn keep_status(&mut self, pod: &Pod, before: &PodStatus, wanted: &PodStatus) {
        let merged = merge(before, wanted);
        if merged != *before {
            self.tell_turns(pod, before, wanted);
            self.pod = Some(Arc::new(Pod { status: Some(merged), ..pod.clone() }));
        }
    }

    /// The events of a pod whose time is over, and of containers that are newly held back.
    fn tell_turns(&self, pod: &Pod, before: &PodStatus, wanted: &PodStatus) {
        if wanted.reason.as_deref() == Some("DeadlineExceeded") && before.reason.is_none() {
            let message = wanted.message.clone().unwrap_or_default();
            self.shared.event(pod, None, Severity::Normal, "DeadlineExceeded", message);
        }
        let reason = |status: &PodStatus, name: &str| {
            let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
            all.filter(|c| c.name == name).find_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone())
        };
        for (container, _) in pod.spec.iter().flat_map(spec::all_containers) {
            let now = reason(wanted, &container.name);
            if now == reason(before, &container.name) {
                continue;
            }
            match now.as_deref() {
                Some("CrashLoopBackOff") => {
                    let message = format!(
                        "Back-off restarting failed container {} in pod {}",
                        container.name,
                        spec::pod_full_name(pod)
                    );
                    self.shared.event(pod, Some(&container.name), Severity::Warning, "BackOff", message);
                }
                Some("ImagePullBackOff") => {
                    let message = format!("Back-off pulling image {:?}", spec::image_of(container));
                    self.shared.event(pod, Some(&container.name), Severity::Normal, "BackOff", message);
                }
                _ => {}
            }
        }
    }

    /// Tells the rest of the agent which containers run, when that has changed.
    pub(super) async fn publish(&mut self) {
        let records = self.observed.instances.iter().filter_map(record).map(|mut record| {
            // Docker knows the image by its id: that is what containers are made from.
            if let Some(container) = self.container(&record.container_name) {
                record.image = spec::image_of(&container).to_owned();
            }
            record
        });
        let records: Vec<ContainerRecord> = records.collect();
        if records != self.published {
            self.published.clone_from(&records);
            let _ = self.shared.inventory.send((self.uid.clone(), records)).await;
        }
    }
}
