//! The canonical form of a pod's status, in which equal statuses compare equal: the one that the API server stores.
//! Pure.
//!
//! The server reads a status into Go's types and writes those, which changes it: what is empty comes back as absent, or
//! absent as empty (`lastState: {}`, `imageID: ""`, `lastProbeTime: null`), times lose what is below a second,
//! quantities are written in one way. A status that was compared with the server's as it was sent would be patched for
//! ever. So the received and the wanted status both take this form, and patches lead from one to the other.
//!
//! A field that is no pointer in Go means the same whether it is absent or empty, and is absent here. Behind a pointer
//! an empty value differs from none, and stays. Each type is destructured, so that a new field does not compile until
//! it is handled.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
        ContainerUser, LinuxContainerUser, PodCondition, PodStatus, ResourceClaim, ResourceHealth,
        ResourceRequirements, ResourceStatus, VolumeMountStatus,
    },
    apimachinery::pkg::{api::resource::Quantity as ApiQuantity, apis::meta::v1::Time},
};
use windlass_kit::quantity::Quantity;

/// The canonical form of a status; see the module.
pub(crate) fn canonical(status: PodStatus) -> PodStatus {
    let PodStatus {
        allocated_resources,
        conditions,
        container_statuses,
        ephemeral_container_statuses,
        extended_resource_claim_status,
        host_ip,
        host_ips,
        init_container_statuses,
        message,
        node_allocatable_resource_claim_statuses,
        nominated_node_name,
        observed_generation,
        phase,
        pod_ip,
        pod_ips,
        qos_class,
        reason,
        resize,
        resource_claim_statuses,
        resources,
        start_time,
    } = status;
    PodStatus {
        allocated_resources: quantities(allocated_resources),
        conditions: each(conditions, condition),
        container_statuses: each(container_statuses, container),
        ephemeral_container_statuses: each(ephemeral_container_statuses, container),
        // The agent does not write these three; they are taken as they are.
        extended_resource_claim_status,
        node_allocatable_resource_claim_statuses,
        resource_claim_statuses: unless_empty(resource_claim_statuses),
        host_ip: text(host_ip),
        host_ips: unless_empty(host_ips),
        init_container_statuses: each(init_container_statuses, container),
        message: text(message),
        nominated_node_name: text(nominated_node_name),
        observed_generation: number(observed_generation),
        phase: text(phase),
        pod_ip: text(pod_ip),
        pod_ips: unless_empty(pod_ips),
        qos_class: text(qos_class),
        reason: text(reason),
        resize: text(resize),
        resources: resources.map(requirements),
        start_time: time(start_time),
    }
}

fn condition(condition: PodCondition) -> PodCondition {
    let PodCondition { last_probe_time, last_transition_time, message, observed_generation, reason, status, type_ } =
        condition;
    PodCondition {
        last_probe_time: time(last_probe_time),
        last_transition_time: time(last_transition_time),
        message: text(message),
        observed_generation: number(observed_generation),
        reason: text(reason),
        status,
        type_,
    }
}

fn container(status: ContainerStatus) -> ContainerStatus {
    let ContainerStatus {
        allocated_resources,
        allocated_resources_status,
        container_id,
        image,
        image_id,
        last_state,
        name,
        ready,
        resources,
        restart_count,
        started,
        state: current,
        stop_signal,
        user,
        volume_mounts,
    } = status;
    ContainerStatus {
        allocated_resources: quantities(allocated_resources),
        allocated_resources_status: each(allocated_resources_status, resource_status),
        container_id: text(container_id),
        image,
        image_id,
        last_state: state(last_state),
        name,
        ready,
        resources: resources.map(requirements),
        restart_count,
        started,
        state: state(current),
        stop_signal,
        user: user.map(|ContainerUser { linux }| ContainerUser { linux: linux.map(linux_user) }),
        volume_mounts: each(volume_mounts, volume_mount),
    }
}

/// The fields of a state are pointers, the state itself is not.
fn state(state: Option<ContainerState>) -> Option<ContainerState> {
    let ContainerState { running, terminated, waiting } = state?;
    let state = ContainerState {
        running: running
            .map(|ContainerStateRunning { started_at }| ContainerStateRunning { started_at: time(started_at) }),
        terminated: terminated.map(terminated_state),
        waiting: waiting.map(|ContainerStateWaiting { message, reason }| ContainerStateWaiting {
            message: text(message),
            reason: text(reason),
        }),
    };
    (state != ContainerState::default()).then_some(state)
}

fn terminated_state(state: ContainerStateTerminated) -> ContainerStateTerminated {
    let ContainerStateTerminated { container_id, exit_code, finished_at, message, reason, signal, started_at } = state;
    ContainerStateTerminated {
        container_id: text(container_id),
        exit_code,
        finished_at: time(finished_at),
        message: text(message),
        reason: text(reason),
        signal: signal.filter(|signal| *signal != 0),
        started_at: time(started_at),
    }
}

fn linux_user(user: LinuxContainerUser) -> LinuxContainerUser {
    let LinuxContainerUser { gid, supplemental_groups, uid } = user;
    LinuxContainerUser { gid, supplemental_groups: unless_empty(supplemental_groups), uid }
}

fn volume_mount(status: VolumeMountStatus) -> VolumeMountStatus {
    let VolumeMountStatus { mount_path, name, read_only, recursive_read_only, volume_status } = status;
    VolumeMountStatus {
        mount_path,
        name,
        read_only: read_only.filter(|only| *only),
        recursive_read_only,
        volume_status,
    }
}

fn resource_status(status: ResourceStatus) -> ResourceStatus {
    let ResourceStatus { name, resources } = status;
    let health =
        |ResourceHealth { health, message, resource_id }| ResourceHealth { health: text(health), message, resource_id };
    ResourceStatus { name, resources: each(resources, health) }
}

fn requirements(resources: ResourceRequirements) -> ResourceRequirements {
    let ResourceRequirements { claims, limits, requests } = resources;
    let claim = |ResourceClaim { name, request }| ResourceClaim { name, request: text(request) };
    ResourceRequirements { claims: each(claims, claim), limits: quantities(limits), requests: quantities(requests) }
}

fn text(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn number(number: Option<i64>) -> Option<i64> {
    number.filter(|number| *number != 0)
}

fn unless_empty<T>(list: Option<Vec<T>>) -> Option<Vec<T>> {
    list.filter(|list| !list.is_empty())
}

fn each<T>(list: Option<Vec<T>>, form: impl FnMut(T) -> T) -> Option<Vec<T>> {
    unless_empty(list).map(|list| list.into_iter().map(form).collect())
}

/// A time without fractions of a second. The first moment of the year 1 is Go's zero time: none.
fn time(time: Option<Time>) -> Option<Time> {
    const NEVER: i64 = -62_135_596_800;
    let at = time?.0;
    let second = at.as_second() - i64::from(at.subsec_nanosecond() < 0);
    Timestamp::from_second(second).ok().filter(|_| second != NEVER).map(Time)
}

/// Quantities as the server writes them; an invalid one stays, for the server to refuse.
fn quantities(all: Option<BTreeMap<String, ApiQuantity>>) -> Option<BTreeMap<String, ApiQuantity>> {
    let written = |ApiQuantity(text)| ApiQuantity(text.parse::<Quantity>().map_or(text, |amount| amount.to_string()));
    let all = all.filter(|all| !all.is_empty())?;
    Some(all.into_iter().map(|(name, amount)| (name, written(amount))).collect())
}

#[cfg(test)]
mod tests;
