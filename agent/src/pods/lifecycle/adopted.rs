//! What an agent makes of containers that an earlier one has started. Pure.

use k8s_openapi::api::core::v1::Pod;

use super::{observed::Observed, probes::reported_status, spec};
use crate::engine::inspect::Instance;

impl Observed {
    /// Learns of the running containers whose postStart hooks are over: those that the API shows as started. The earlier agent
    /// may have been killed before it ran another's hook, or meanwhile, and a hook is promised to run at least once.
    pub(crate) fn adopt_hooks(&mut self, pod: Option<&Pod>) {
        let over = self.instances.iter().filter(|i| i.is_running() && pod.is_none_or(|pod| is_hook_over(pod, i)));
        self.post_start_done.extend(over.map(|i| i.id.clone()));
    }
}

fn is_hook_over(pod: &Pod, instance: &Instance) -> bool {
    // The API may not have the mirror pod yet, which has the status of a static pod.
    let untold = pod.status.is_none() && spec::is_static(pod);
    untold || reported_status(pod, instance).is_some_and(|c| c.started == Some(true))
}
