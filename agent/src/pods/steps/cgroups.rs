//! Limits of a pod's cgroup and of its containers' cgroups.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use windlass_kit::objects::{requests::requests, resources::class_of};

use super::context::PodContext;
use crate::{
    cgroup::{
        self, ContainerLimits,
        limits::pod_cgroup,
        tree::{PodCgroup, Values},
    },
    pods::{
        container::qos,
        lifecycle::{pod_limits::pod_limits, spec},
    },
};

/// What a pod's spec makes of its cgroup; `None` without a spec.
pub(super) fn wanted_cgroup(context: &PodContext, pod: &Pod) -> Option<PodCgroup> {
    let spec = pod.spec.as_ref()?;
    Some(PodCgroup {
        name: cgroup_of(context, pod),
        class: class_of(pod),
        milli_cpu: requests(pod).milli_cpu,
        values: Values {
            swap: Some(qos::pod_swap_limit(pod, spec, context.node_swap)),
            pids: Some(context.node.config.pod_pids_limit),
            pages: Some(qos::pod_huge_pages(spec)),
            ..Values::of(&pod_limits(spec))
        },
    })
}

/// Applies the limits of a pod's spec to its cgroup, but for what that has more.
pub(super) async fn apply_pod_cgroup(context: &PodContext, pod: &Pod) {
    if let Some(wanted) = wanted_cgroup(context, pod) {
        let began = Instant::now();
        context.node.cgroups.grow_pod(spec::uid(pod), &wanted).await;
        context.node.metrics.cgroup_seconds.observe_duration(["update"], began.elapsed());
    }
}

/// Takes over the cgroup of an adopted pod: with the resources that are `allocated` to it, and no less than its `running`
/// containers have, since a resize may have stopped between the two.
pub(super) async fn adopt_pod_cgroup(context: &PodContext, allocated: &Pod, running: &Pod) {
    if let (Some(wanted), Some(has)) = (wanted_cgroup(context, allocated), wanted_cgroup(context, running)) {
        context.node.cgroups.adopt_pod(spec::uid(allocated), wanted.grown(&has)).await;
    }
}

/// Applies to a container that has just started, or was resized, what Docker has no option for.
pub(super) fn apply_container_cgroup(context: &PodContext, pod: &Pod, name: &str, id: &str) {
    if let Some(container) = pod.spec.as_ref().and_then(|spec| spec::container(spec, name)) {
        let limits = ContainerLimits {
            pages: pod.spec.as_ref().map(|spec| qos::huge_pages_within(spec, &container)).unwrap_or_default(),
            swap: qos::swap_limit(pod, &container, context.node_swap),
            oom_group: !context.node.config.single_process_oom_kill,
        };
        cgroup::apply_container_limits(&cgroup_of(context, pod), id, &limits);
    }
}

/// The cgroup of a pod, as Docker names it.
fn cgroup_of(context: &PodContext, pod: &Pod) -> String {
    pod_cgroup(class_of(pod), spec::uid(pod), context.engine_info.borrow().systemd_cgroups)
}
