//! Limits of a pod's cgroup and of its containers' cgroups.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use windlass_kit::objects::resources::class_of;

use super::context::PodContext;
use crate::{
    cgroup::{self, limits::pod_cgroup},
    engine::inspect::Limits,
    pods::{container::qos, lifecycle::spec},
};

/// Applies the limits of a pod's spec to its cgroup; with `unlimited` none of CPU and memory, while its containers are
/// being resized.
pub(super) async fn apply_pod_cgroup(context: &PodContext, pod: &Pod, unlimited: bool) {
    let Some(spec) = &pod.spec else { return };
    let mut limits = qos::pod_limits(spec);
    if unlimited {
        limits = Limits { memory: 0, cpu_quota: 0, ..limits };
    }
    let pages = qos::pod_huge_pages(spec);
    let began = Instant::now();
    cgroup::apply_pod_limits(&cgroup_of(context, pod), &limits, &pages, context.node.config.pod_pids_limit).await;
    context.node.metrics.cgroup_seconds.observe_duration(["update"], began.elapsed());
}

/// Applies to a container that has just started what Docker has no option for.
pub(super) fn apply_container_cgroup(context: &PodContext, pod: &Pod, name: &str, id: &str) {
    if let Some(container) = pod.spec.as_ref().and_then(|spec| spec::container(spec, name)) {
        let oom_group = !context.node.config.single_process_oom_kill;
        cgroup::apply_container_limits(&cgroup_of(context, pod), id, &qos::huge_pages(&container), oom_group);
    }
}

/// The cgroup of a pod, as Docker names it.
fn cgroup_of(context: &PodContext, pod: &Pod) -> String {
    pod_cgroup(class_of(pod), spec::uid(pod), context.engine_info.borrow().systemd_cgroups)
}
