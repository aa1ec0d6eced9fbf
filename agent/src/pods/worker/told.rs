//! What a worker tells: the status to the API, events, and the rest of the agent which containers run.

use super::*;

impl Worker {
    /// Sends the status if it differs from what the API has; gives when to look again.
    pub(super) fn write_status(&mut self, now: Timestamp) -> Option<Timestamp> {
        const KEY: &str = "status";
        let pod = self.pod.clone().filter(|_| !self.gone)?;
        if self.observed.in_flight.contains(KEY) || self.finished {
            return None;
        }
        let before = pod.status.clone().unwrap_or_default();
        let wanted = status::status(&pod, &self.observed, self.shared.config.node_ip, now);
        let merged = merge(&before, &wanted);
        if merged == before {
            return None;
        }
        if let Some(at) = self.patch_after.filter(|at| *at > now) {
            return Some(at);
        }
        self.tell_backoffs(&pod, &before, &wanted);
        let client = self.shared.client.clone();
        self.push(KEY.to_owned(), async move {
            let api: Api<Pod> = Api::namespaced(client, spec::namespace(&pod));
            let patch = patch_of(&pod, &before, &merged);
            let result = api.patch_status(spec::name(&pod), &PatchParams::default(), &Patch::Strategic(patch)).await;
            Outcome::Patched { from: version(&pod), result: result.map(Box::new) }
        });
        None
    }

    /// The events of containers that are newly held back.
    fn tell_backoffs(&self, pod: &Pod, before: &PodStatus, wanted: &PodStatus) {
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
        let records: Vec<ContainerRecord> = self.observed.instances.iter().filter_map(record).collect();
        if records != self.published {
            self.published.clone_from(&records);
            let _ = self.shared.inventory.send((self.uid.clone(), records)).await;
        }
    }
}
