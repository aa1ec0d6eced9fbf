//! Resources that change while a pod runs: what each container needs done for them, and what it has meanwhile. Pure;
//! `admission::reservations` decides whether the node can give them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use windlass_kit::{
    objects::resources::{amount, limit},
    quantity::Quantity,
};

use super::{
    observed::{Observed, ResizeDecision},
    pod_limits::pod_limits,
    spec,
    view::PodView,
};
use crate::{
    cgroup::{
        limits::{CPU_PERIOD, container_limits},
        tree::Resource,
    },
    engine::inspect::{Instance, Limits, State},
};

/// The condition of a resize that is deferred or infeasible.
pub(crate) const RESIZE_PENDING: &str = "PodResizePending";

/// How a container gets the resources of its spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResizePath {
    /// While it runs.
    InPlace,
    /// By a restart: its resizePolicy says so, or Docker cannot do it otherwise.
    Restart,
}

/// How a running container gets the resources of its spec; `None` when it has them.
pub(crate) fn resize_path(spec: &PodSpec, container: &Container, instance: &Instance) -> Option<ResizePath> {
    let (is, wanted) = (instance.limits, container_limits(spec.resources.as_ref(), container));
    if !instance.is_running() || is == wanted {
        return None;
    }
    let restarts = |resource: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    let cpu = (is.cpu_shares, is.cpu_quota) != (wanted.cpu_shares, wanted.cpu_quota);
    let memory = is.memory != wanted.memory;
    // Docker cannot remove a memory limit while a container runs.
    let again = (cpu && restarts("cpu")) || (memory && (restarts("memory") || wanted.memory == 0));
    Some(if again { ResizePath::Restart } else { ResizePath::InPlace })
}

/// One resource of one running container that is to become what the spec says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResizeStep {
    pub(crate) container: String,
    pub(crate) id: String,
    pub(crate) resource: Resource,
    /// The containers whose memory limit is to shrink, this one or others.
    pub(crate) shrinking: Vec<ShrinkingMemory>,
}

/// A container whose memory limit is to shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShrinkingMemory {
    pub(crate) container: String,
    pub(crate) id: String,
    /// Bytes that it is to have.
    pub(crate) limit: i64,
}

/// The next step of a granted resize; `None` when no running container needs one. In upstream's order
/// (`doPodResizeAction`, pkg/kubelet/kuberuntime/kuberuntime_manager.go): memory before CPU, and of each what shrinks
/// before what grows.
pub(crate) fn next_step(spec: &PodSpec, observed: &Observed) -> Option<ResizeStep> {
    let all = spec::all_containers(spec).filter_map(|(c, _)| Some((c, observed.newest(&c.name)?)));
    let in_place: Vec<(&Container, &Instance, Limits)> = all
        .filter(|(container, instance)| resize_path(spec, container, instance) == Some(ResizePath::InPlace))
        .map(|(container, instance)| (container, instance, container_limits(spec.resources.as_ref(), container)))
        .collect();
    // No limit is the largest.
    let shrinks = |is: i64, wanted: i64| wanted > 0 && (is == 0 || wanted < is);
    let memory = |is: Limits, wanted: Limits| (is.memory != wanted.memory).then(|| shrinks(is.memory, wanted.memory));
    let cpu = |is: Limits, wanted: Limits| {
        if is.cpu_quota != wanted.cpu_quota {
            return Some(shrinks(is.cpu_quota, wanted.cpu_quota));
        }
        (is.cpu_shares != wanted.cpu_shares).then_some(wanted.cpu_shares < is.cpu_shares)
    };
    let changing = |of: &dyn Fn(Limits, Limits) -> Option<bool>| {
        let changes = in_place.iter().filter_map(|(c, i, wanted)| Some((*c, *i, of(i.limits, *wanted)?)));
        let mut changes: Vec<(&Container, &Instance, bool)> = changes.collect();
        changes.sort_by_key(|(.., shrinks)| !shrinks);
        changes
    };
    let (memory, cpu) = (changing(&memory), changing(&cpu));
    let (resource, changes) = if memory.is_empty() { (Resource::Cpu, cpu) } else { (Resource::Memory, memory) };
    let (container, instance, _) = changes.first()?;
    let shrinking = changes.iter().filter(|(.., shrinks)| *shrinks && resource == Resource::Memory);
    Some(ResizeStep {
        container: container.name.clone(),
        id: instance.id.clone(),
        resource,
        shrinking: shrinking
            .map(|(container, instance, _)| ShrinkingMemory {
                container: container.name.clone(),
                id: instance.id.clone(),
                limit: container_limits(spec.resources.as_ref(), container).memory,
            })
            .collect(),
    })
}

/// The resource of the pod's own cgroup that is to become what the spec says, once no container needs a step any more:
/// it grows before each of them, and shrinks after all.
pub(crate) fn next_pod_step(spec: &PodSpec, observed: &Observed) -> Option<Resource> {
    let (is, wanted) = (observed.pod_limits?, pod_limits(spec));
    let running = spec::all_containers(spec).filter_map(|(c, _)| Some((c, observed.newest(&c.name)?)));
    let mut waits = running.filter(|(container, instance)| resize_path(spec, container, instance).is_some());
    if waits.next().is_some() {
        return None;
    }
    match (is.memory != wanted.memory, is != wanted) {
        (true, _) => Some(Resource::Memory),
        (false, true) => Some(Resource::Cpu),
        (false, false) => None,
    }
}

/// Why memory limits may not shrink now; `None` where they may. Below what is in use a limit would have the kernel kill
/// processes. `pod` has the limit that the pod is to have, if its own shrinks, and what it uses; `containers` their
/// names, limits and use. Upstream's words (`validateMemoryResizeAction`).
pub(crate) fn refused_shrinking(
    pod: Option<(i64, Option<u64>)>,
    containers: &[(&str, i64, Option<u64>)],
) -> Option<String> {
    let below = |limit: i64, used: u64| u64::try_from(limit).is_ok_and(|limit| used >= limit);
    let mut all = Vec::new();
    match pod {
        Some((_, None)) => all.push("missing pod memory usage".to_owned()),
        Some((limit, Some(used))) if below(limit, used) => {
            all.push(format!("attempting to set pod memory limit ({limit}) below current usage ({used})"));
        }
        _ => {}
    }
    for (name, limit, used) in containers {
        match used {
            None => all.push(format!("missing container {name:?} memory usage")),
            Some(used) if below(*limit, *used) => all.push(format!(
                "attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"
            )),
            Some(_) => {}
        }
    }
    let all = match all.as_slice() {
        [] => return None,
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Some(format!("cannot decrease memory limits: {all}"))
}

impl PodView<'_> {
    /// Whether the pod has other resources than its spec says: allocated to it, or given to a container that runs or is
    /// to be run again.
    pub(crate) fn is_resize_due(&self) -> bool {
        let observed = self.observed;
        if observed.allocated.as_ref().is_some_and(|allocated| allocated.differs(self.spec)) {
            return true;
        }
        if observed.has_running() && observed.pod_limits.is_some_and(|is| is != pod_limits(self.spec)) {
            return true;
        }
        let all = spec::all_containers(self.spec);
        all.filter_map(|(c, role)| Some((c, role, observed.newest(&c.name)?))).any(|(container, role, instance)| {
            match &instance.state {
                State::Running { .. } => resize_path(self.spec, container, instance).is_some(),
                State::Exited(exit) => {
                    instance.limits != container_limits(self.spec.resources.as_ref(), container)
                        && self.restarts(container, role, instance, exit)
                }
                State::Created => false,
            }
        })
    }
}

/// Whether a resize is deferred or infeasible: containers keep the resources that they have, also across restarts.
pub(crate) fn is_resize_blocked(observed: &Observed) -> bool {
    matches!(observed.resize, Some(ResizeDecision::Deferred(_) | ResizeDecision::Infeasible(_)))
}

/// The resources that a container has by its cgroup's `limits`; `None` where its spec names none. Its memory request is
/// the spec's, since Docker does not know it.
pub(crate) fn actual_resources(
    whole: Option<&ResourceRequirements>,
    container: &Container,
    limits: Limits,
) -> Option<ResourceRequirements> {
    let wanted = container.resources.clone().filter(|r| *r != ResourceRequirements::default())?;
    // What it has of the pod as a whole is not its own.
    let inherits = |resource: &str| {
        limit(container, resource).is_none_or(Quantity::is_zero)
            && amount(whole.and_then(|r| r.limits.as_ref()), resource).is_some()
    };
    let inherited = ["cpu", "memory"].map(inherits);
    let mut bounds: BTreeMap<String, ApiQuantity> = wanted.limits.unwrap_or_default();
    let mut put = |resource: &str, inherited: bool, value: i64, text: String| match (inherited, value > 0) {
        (true, _) => {}
        (false, true) => drop(bounds.insert(resource.to_owned(), ApiQuantity(text))),
        (false, false) => drop(bounds.remove(resource)),
    };
    put("cpu", inherited[0], limits.cpu_quota, format!("{}m", limits.cpu_quota * 1000 / CPU_PERIOD));
    put("memory", inherited[1], limits.memory, in_units(limits.memory));
    let mut requests = wanted.requests.unwrap_or_default();
    // Two shares are what a container without a request has.
    let milli = if limits.cpu_shares > 2 { milli_of_shares(limits.cpu_shares) } else { 0 };
    if milli > 0 || bounds.contains_key("cpu") {
        requests.insert("cpu".to_owned(), ApiQuantity(format!("{milli}m")));
    } else {
        requests.remove("cpu");
    }
    Some(ResourceRequirements { limits: Some(bounds), requests: Some(requests), ..wanted })
}

/// Millicores of CPU shares: what they were made of.
pub(crate) fn milli_of_shares(shares: i64) -> i64 {
    (shares * 1000 + 1023) / 1024
}

/// Bytes in the largest binary unit that divides them, as the API writes quantities.
pub(crate) fn in_units(bytes: i64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let whole = units.into_iter().find(|(shift, _)| bytes % (1i64 << shift) == 0);
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Since when the pod has the condition `PodResizePending`.
pub(crate) fn pending_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let pending = conditions.iter().find(|c| c.type_ == RESIZE_PENDING && c.status == "True")?;
    pending.last_transition_time.as_ref().map(|at| at.0)
}

/// The container with the resources that are allocated to it.
pub(crate) fn with_allocated_resources(container: &Container, observed: &Observed) -> Container {
    let resources = observed.allocated.as_ref().and_then(|a| a.resources(container)).or(container.resources.as_ref());
    Container { resources: resources.cloned(), ..container.clone() }
}

/// The pod with the resources that its containers have, where those differ from its spec.
pub(crate) fn with_actual_resources(pod: &Pod, observed: &Observed) -> Pod {
    match &observed.allocated {
        Some(allocated) => allocated.applied_to(pod),
        None => with_limits_of_containers(pod, observed),
    }
}

/// The pod with the limits that its containers have now, whatever is allocated to them: in the middle of a resize those
/// differ.
pub(crate) fn with_limits_of_containers(pod: &Pod, observed: &Observed) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    let whole = spec.resources.clone();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(instance) = observed.newest(&container.name)
            && instance.limits != container_limits(whole.as_ref(), container)
            && let Some(actual) = actual_resources(whole.as_ref(), container, instance.limits)
        {
            container.resources = Some(actual);
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use windlass_kit::{
        objects::{requests::requests, resources::request},
        quantity::Quantity,
    };

    use super::*;
    use crate::pods::lifecycle::allocated::Allocated;

    fn is_due(pod: &Pod, observed: &Observed) -> bool {
        PodView::new(pod, observed, Timestamp::UNIX_EPOCH).unwrap().is_resize_due()
    }

    #[test]
    fn what_ended_with_other_resources_is_due_when_it_comes_back() {
        let spec: PodSpec = serde_json::from_str(
            r#"{"restartPolicy":"OnFailure","containers":[{"name":"c","resources":{"limits":{"memory":"8Mi"}}}]}"#,
        )
        .unwrap();
        let answer = |code: i64, memory: i64| -> Instance {
            let made: bollard::models::ContainerInspectResponse = serde_json::from_value(serde_json::json!({
                "Id": "1", "Name": "/k8s_c_p_n_u_0", "State": {"Status": "exited", "ExitCode": code,
                    "StartedAt": "2026-01-01T00:00:00Z", "FinishedAt": "2026-01-01T00:00:01Z"},
                "HostConfig": {"Memory": memory, "CpuShares": 2, "CpuQuota": -1},
                "Config": {"Labels": {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "p",
                    "io.kubernetes.pod.namespace": "n", "io.kubernetes.container.name": "c",
                    "io.kubernetes.docker.type": "container"}}}))
            .unwrap();
            Instance::read(&made).unwrap()
        };
        for (code, memory, wanted) in [(1, 16 << 20, true), (0, 16 << 20, false), (1, 8 << 20, false)] {
            let mut observed = Observed::default();
            observed.upsert(answer(code, memory));
            let pod = Pod { spec: Some(spec.clone()), ..Pod::default() };
            assert_eq!(is_due(&pod, &observed), wanted, "{code} {memory}");
            let actual = with_actual_resources(&pod, &observed).spec.unwrap();
            assert_eq!(container_limits(None, &actual.containers[0]).memory, memory);
        }
    }

    #[test]
    fn memory_before_cpu_and_what_shrinks_before_what_grows() {
        let spec: PodSpec = serde_json::from_str(
            r#"{"containers":[
                {"name":"grows","resources":{"limits":{"memory":"64Mi","cpu":"2"}}},
                {"name":"shrinks","resources":{"limits":{"memory":"16Mi","cpu":"1"}}},
                {"name":"restarts","resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"}],
                    "resources":{"limits":{"memory":"16Mi"}}},
                {"name":"same","resources":{"limits":{"memory":"32Mi"}}}]}"#,
        )
        .unwrap();
        let mut observed = Observed::default();
        let has = |name: &str, limits: Limits, observed: &mut Observed| observed.upsert(running(name, limits));
        let before = Limits { memory: 32 << 20, cpu_shares: 2, cpu_quota: 0 };
        for name in ["grows", "shrinks", "restarts", "same"] {
            has(name, before, &mut observed);
        }
        let mut steps = Vec::new();
        while let Some(step) = next_step(&spec, &observed) {
            let shrinking: Vec<_> = step.shrinking.iter().map(|s| (s.container.as_str(), s.limit)).collect();
            steps.push(format!("{:?} {} {shrinking:?}", step.resource, step.container));
            let container = spec.containers.iter().find(|c| c.name == step.container).unwrap();
            let (is, wanted) = (observed.newest(&step.container).unwrap().limits, container_limits(None, container));
            let next = match step.resource {
                Resource::Memory => Limits { memory: wanted.memory, ..is },
                Resource::Cpu => Limits { memory: is.memory, ..wanted },
            };
            has(&step.container, next, &mut observed);
        }
        assert_eq!(
            steps,
            [r#"Memory shrinks [("shrinks", 16777216)]"#, "Memory grows []", "Cpu grows []", "Cpu shrinks []",]
        );
    }

    /// A resize that shrinks the pod as a whole: the containers first, those without a limit of their own too, then the
    /// pod, memory before CPU. In its middle the agent may be started again.
    #[test]
    fn the_pod_shrinks_after_its_containers() {
        let spec = |memory: &str, cpu: &str| -> PodSpec {
            let text = format!(
                r#"{{"resources":{{"limits":{{"memory":"{memory}","cpu":"{cpu}"}}}},
                    "containers":[{{"name":"c"}},{{"name":"own","resources":{{"limits":{{"memory":"8Mi","cpu":"1"}}}}}}]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let (large, small) = (spec("64Mi", "2"), spec("32Mi", "1"));
        let with = |of: &PodSpec| {
            let mut observed = Observed { allocated: Some(Allocated::of(of)), ..Observed::default() };
            for container in &of.containers {
                let limits = container_limits(of.resources.as_ref(), container);
                observed.upsert(running(&container.name, limits));
            }
            Observed { pod_limits: Some(pod_limits(of)), ..observed }
        };
        let pod = Pod { spec: Some(small.clone()), ..Pod::default() };
        let mut observed = with(&large);
        assert!(is_due(&pod, &observed), "the spec asks for less than is allocated");
        let shown = |pod: &Pod| {
            let spec = pod.spec.as_ref().unwrap();
            (pod_limits(spec).memory, container_limits(spec.resources.as_ref(), &spec.containers[0]).memory)
        };
        // Before the resize is evaluated, a restarted agent reports what the pod has.
        assert_eq!(shown(&with_actual_resources(&pod, &observed)), (64 << 20, 64 << 20));
        observed.allocated = Some(Allocated::of(&small));
        assert!(is_due(&pod, &observed), "it is granted, and nothing has been done");
        assert_eq!(next_pod_step(&small, &observed), None, "a container still has more");
        let step = next_step(&small, &observed).unwrap();
        assert_eq!((step.container.as_str(), step.resource), ("c", Resource::Memory));
        let allocated = with_actual_resources(&pod, &observed);
        let has = with_limits_of_containers(&allocated, &observed);
        assert_eq!(has.spec.unwrap().containers[0].resources, None, "what is the pod's is not told as its own");
        observed.upsert(running("c", container_limits(small.resources.as_ref(), &small.containers[0])));
        assert_eq!((next_step(&small, &observed), next_pod_step(&small, &observed)), (None, Some(Resource::Memory)));
        let (is, wanted) = (pod_limits(&large), pod_limits(&small));
        observed.pod_limits = Some(Limits { memory: wanted.memory, ..is });
        assert_eq!(next_pod_step(&small, &observed), Some(Resource::Cpu));
        assert!(is_due(&pod, &observed));
        observed.pod_limits = Some(wanted);
        assert!(next_pod_step(&small, &observed).is_none() && !is_due(&pod, &observed));
    }

    fn running(name: &str, limits: Limits) -> Instance {
        let made: bollard::models::ContainerInspectResponse = serde_json::from_value(serde_json::json!({
            "Id": name, "Name": format!("/k8s_{name}_p_n_u_0"),
            "State": {"Status": "running", "Running": true, "StartedAt": "2026-01-01T00:00:00Z"},
            "HostConfig": {"Memory": limits.memory, "CpuShares": limits.cpu_shares, "CpuQuota": limits.cpu_quota},
            "Config": {"Labels": {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "p",
                "io.kubernetes.pod.namespace": "n", "io.kubernetes.container.name": name,
                "io.kubernetes.docker.type": "container"}}}))
        .unwrap();
        Instance::read(&made).unwrap()
    }

    /// The texts are those of kubelet's `validateMemoryResizeAction`.
    #[test]
    fn a_limit_below_what_is_in_use_is_refused() {
        let one = [("c", 256 << 20, Some(300 << 20))];
        for (pod, containers, words) in [
            (None, &[("c", 256 << 20, Some(255 << 20))][..], None),
            (Some((256 << 20, Some(1))), &[], None),
            (
                None,
                &one[..],
                Some(
                    r#"cannot decrease memory limits: attempting to set container "c" memory limit (268435456) below current usage (314572800)"#,
                ),
            ),
            (
                Some((10, Some(10))),
                &[("c", 10, None)][..],
                Some(
                    r#"cannot decrease memory limits: [attempting to set pod memory limit (10) below current usage (10), missing container "c" memory usage]"#,
                ),
            ),
            (Some((10, None)), &[], Some("cannot decrease memory limits: missing pod memory usage")),
        ] {
            assert_eq!(refused_shrinking(pod, containers).as_deref(), words);
        }
    }

    /// Docker does not know memory requests: the allocated resources show that the spec asks for others.
    #[test]
    fn a_resize_of_a_request_alone_is_due() {
        let pod = |request: &str| -> Pod {
            let text = format!(
                r#"{{"spec":{{"containers":[{{"name":"c","resources":{{"requests":{{"memory":"{request}"}},"limits":{{"memory":"64Mi"}}}}}}]}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let (has, asks) = (pod("16Mi"), pod("48Mi"));
        let allocated = |pod: &Pod| Some(Allocated::of(pod.spec.as_ref().unwrap()));
        let mut observed = Observed { allocated: allocated(&has), ..Observed::default() };
        assert!(is_due(&asks, &observed) && !is_due(&has, &observed));
        assert_eq!(with_actual_resources(&asks, &observed), has, "a deferred resize changes nothing");
        let memory = |pod: &Pod| requests(pod).memory;
        assert_eq!((memory(&with_actual_resources(&asks, &observed)), memory(&asks)), (16 << 20, 48 << 20));
        observed.allocated = allocated(&asks);
        assert!(!is_due(&asks, &observed));
    }

    #[test]
    fn a_deferred_resize_keeps_its_age_across_a_restart_of_the_agent() {
        let pod: Pod = serde_json::from_str(
            r#"{"status":{"conditions":[{"type":"PodResizePending","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
        )
        .unwrap();
        assert_eq!(pending_since(&pod), Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(pending_since(&Pod::default()), None);
    }

    #[test]
    fn actual_resources_give_the_same_limits() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","resources":{"requests":{"cpu":"2","memory":"1Gi"},"limits":{"cpu":"4"}}}"#,
        )
        .unwrap();
        for limits in [
            Limits { memory: 32 << 20, cpu_shares: 102, cpu_quota: 20_000 },
            Limits { memory: 1_000_001, cpu_shares: 2, cpu_quota: 0 },
            Limits { memory: 0, cpu_shares: 2, cpu_quota: 50_000 },
        ] {
            let actual = Container { resources: actual_resources(None, &container, limits), ..container.clone() };
            assert_eq!(container_limits(None, &actual), limits, "{:?}", actual.resources);
            assert_eq!(request(&actual, "memory").map(Quantity::units), Some(1 << 30));
        }
        assert_eq!(actual_resources(None, &Container::default(), Limits::default()), None);
    }
}
