//! Messages about the runtime, containers and sandboxes. Pure.

use std::collections::BTreeMap;

use super::{image::ImageSpec, messages};

/// `ContainerState`.
pub(crate) mod container_state {
    pub(crate) const CREATED: i32 = 0;
    pub(crate) const RUNNING: i32 = 1;
    pub(crate) const EXITED: i32 = 2;
}

/// `PodSandboxState`.
pub(crate) mod sandbox_state {
    pub(crate) const READY: i32 = 0;
    pub(crate) const NOT_READY: i32 = 1;
}

/// `NamespaceMode`.
pub(crate) mod namespace_mode {
    pub(crate) const POD: i32 = 0;
    pub(crate) const CONTAINER: i32 = 1;
    pub(crate) const NODE: i32 = 2;
}

/// Text by text: labels, annotations, details.
pub(crate) type Texts = BTreeMap<String, String>;

messages! {
    /// Asks which runtime this is.
    VersionRequest { version: String = 1 }

    /// Which runtime this is.
    VersionResponse {
        version: String = 1,
        runtime_name: String = 2,
        runtime_version: String = 3,
        runtime_api_version: String = 4,
    }

    /// Asks whether the runtime is ready.
    StatusRequest { verbose: bool = 1 }

    /// Whether the runtime is ready.
    StatusResponse { status: Option<RuntimeStatus> = 1, info: Texts = 2 }

    /// The conditions of the runtime.
    RuntimeStatus { conditions: Vec<RuntimeCondition> = 1 }

    /// One of them.
    RuntimeCondition { r#type: String = 1, status: bool = 2, reason: String = 3, message: String = 4 }

    /// Asks for containers.
    ListContainersRequest { filter: Option<ContainerFilter> = 1 }

    /// Which containers; an empty field matches all.
    ContainerFilter {
        id: String = 1,
        state: Option<StateValue> = 2,
        pod_sandbox_id: String = 3,
        label_selector: Texts = 4,
    }

    /// A state in a filter, where no state is another thing than the first one.
    StateValue { state: i32 = 1 }

    /// Containers.
    ListContainersResponse { containers: Vec<Container> = 1 }

    /// A container.
    Container {
        id: String = 1,
        pod_sandbox_id: String = 2,
        metadata: Option<ContainerMetadata> = 3,
        image: Option<ImageSpec> = 4,
        image_ref: String = 5,
        state: i32 = 6,
        created_at: i64 = 7,
        labels: Texts = 8,
        annotations: Texts = 9,
        image_id: String = 10,
    }

    /// The name of a container, and how often it was restarted.
    ContainerMetadata { name: String = 1, attempt: u32 = 2 }

    /// Asks for one container.
    ContainerStatusRequest { container_id: String = 1, verbose: bool = 2 }

    /// One container.
    ContainerStatusResponse { status: Option<ContainerStatus> = 1, info: Texts = 2 }

    /// All about one container. Times are nanoseconds since 1970.
    ContainerStatus {
        id: String = 1,
        metadata: Option<ContainerMetadata> = 2,
        state: i32 = 3,
        created_at: i64 = 4,
        started_at: i64 = 5,
        finished_at: i64 = 6,
        exit_code: i32 = 7,
        image: Option<ImageSpec> = 8,
        image_ref: String = 9,
        reason: String = 10,
        message: String = 11,
        labels: Texts = 12,
        annotations: Texts = 13,
        log_path: String = 15,
        resources: Option<ContainerResources> = 16,
        image_id: String = 17,
        user: Option<ContainerUser> = 18,
    }

    /// Limits of a container.
    ContainerResources { linux: Option<LinuxContainerResources> = 1 }

    /// Limits of a container on Linux; 0 is none.
    LinuxContainerResources {
        cpu_period: i64 = 1,
        cpu_quota: i64 = 2,
        cpu_shares: i64 = 3,
        memory_limit_in_bytes: i64 = 4,
    }

    /// Who a container runs as.
    ContainerUser { linux: Option<LinuxContainerUser> = 1 }

    /// Who a container runs as on Linux.
    LinuxContainerUser { uid: i64 = 1, gid: i64 = 2 }

    /// Stops a container, after this many seconds by force.
    StopContainerRequest { container_id: String = 1, timeout: i64 = 2 }

    /// It was stopped.
    StopContainerResponse {}

    /// Runs a command in a container to its end, for at most this many seconds; 0 is for ever.
    ExecSyncRequest { container_id: String = 1, cmd: Vec<String> = 2, timeout: i64 = 3 }

    /// How the command ended.
    ExecSyncResponse { stdout: Vec<u8> = 1, stderr: Vec<u8> = 2, exit_code: i32 = 3 }

    /// Asks for sandboxes.
    ListPodSandboxRequest { filter: Option<PodSandboxFilter> = 1 }

    /// Which sandboxes; an empty field matches all.
    PodSandboxFilter { id: String = 1, state: Option<StateValue> = 2, label_selector: Texts = 3 }

    /// Sandboxes.
    ListPodSandboxResponse { items: Vec<PodSandbox> = 1 }

    /// The name of a pod, and which of its sandboxes this is.
    PodSandboxMetadata { name: String = 1, uid: String = 2, namespace: String = 3, attempt: u32 = 4 }

    /// A sandbox.
    PodSandbox {
        id: String = 1,
        metadata: Option<PodSandboxMetadata> = 2,
        state: i32 = 3,
        created_at: i64 = 4,
        labels: Texts = 5,
        annotations: Texts = 6,
        runtime_handler: String = 7,
    }

    /// Asks for one sandbox.
    PodSandboxStatusRequest { pod_sandbox_id: String = 1, verbose: bool = 2 }

    /// One sandbox.
    PodSandboxStatusResponse { status: Option<PodSandboxStatus> = 1, info: Texts = 2 }

    /// All about one sandbox.
    PodSandboxStatus {
        id: String = 1,
        metadata: Option<PodSandboxMetadata> = 2,
        state: i32 = 3,
        created_at: i64 = 4,
        network: Option<PodSandboxNetworkStatus> = 5,
        linux: Option<LinuxPodSandboxStatus> = 6,
        labels: Texts = 7,
        annotations: Texts = 8,
        runtime_handler: String = 9,
    }

    /// The addresses of a sandbox.
    PodSandboxNetworkStatus { ip: String = 1, additional_ips: Vec<PodIp> = 2 }

    /// Another address of a sandbox.
    PodIp { ip: String = 1 }

    /// What a sandbox has on Linux.
    LinuxPodSandboxStatus { namespaces: Option<Namespace> = 1 }

    /// The namespaces of a sandbox.
    Namespace { options: Option<NamespaceOption> = 2 }

    /// Whose each namespace is.
    NamespaceOption { network: i32 = 1, pid: i32 = 2, ipc: i32 = 3 }
}
