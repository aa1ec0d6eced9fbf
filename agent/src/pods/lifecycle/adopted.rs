//! What an agent makes of containers that an earlier one has started. Pure.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use super::{observed::Observed, probes::reported_status, reasons, spec};
use crate::engine::inspect::Instance;

impl Observed {
    /// Learns all that the API knows of containers that were started before this agent, and the engine does not say.
    pub(crate) fn adopt(&mut self, pod: Option<&Pod>) {
        self.adopt_hooks(pod);
        if let Some(pod) = pod {
            self.adopt_oom_kills(pod);
        }
    }

    /// Learns which containers were OOM-killed: the engine may have reported it only in an event, to the previous
    /// agent.
    fn adopt_oom_kills(&mut self, pod: &Pod) {
        let killed = self.instances.iter().filter(|i| i.exit().is_some() && was_oom_killed(pod, i));
        let killed: Vec<Instance> = killed.cloned().collect();
        self.out_of_memory.extend(killed.iter().map(|i| i.id.clone()));
        killed.into_iter().for_each(|instance| self.upsert(instance));
    }

    /// Learns of the running containers whose postStart hooks are over: those that the API shows as started. The earlier agent
    /// may have been killed before it ran another's hook, or meanwhile, and a hook is promised to run at least once.
    fn adopt_hooks(&mut self, pod: Option<&Pod>) {
        let over = self.instances.iter().filter(|i| i.is_running() && pod.is_none_or(|pod| is_hook_over(pod, i)));
        self.post_start_done.extend(over.map(|i| i.id.clone()));
    }
}

fn is_hook_over(pod: &Pod, instance: &Instance) -> bool {
    // The API may not have the mirror pod yet, which has the status of a static pod.
    let untold = pod.status.is_none() && spec::is_static(pod);
    untold || reported_status(pod, instance).is_some_and(|c| c.started == Some(true))
}

/// Whether the API shows that end of a container, as its last one or the one before.
fn was_oom_killed(pod: &Pod, instance: &Instance) -> bool {
    let id = instance.container_id();
    let of_instance = |terminated: &ContainerStateTerminated| {
        terminated.container_id.as_ref() == Some(&id) && terminated.reason.as_deref() == Some(reasons::OOM_KILLED)
    };
    let all = pod
        .status
        .iter()
        .flat_map(|s| [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses]);
    let states = all.flatten().flatten().flat_map(|c| [&c.state, &c.last_state]);
    states.flatten().filter_map(|state| state.terminated.as_ref()).any(of_instance)
}
