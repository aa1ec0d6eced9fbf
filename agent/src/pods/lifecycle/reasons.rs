//! Reasons that statuses, conditions and events show, and that decisions compare. The words are upstream's
//! (`pkg/kubelet/container/sync_result.go`, `pkg/kubelet/events/event.go`, `pkg/kubelet/images/types.go`).

// Waiting reasons of containers.
pub(crate) const CONTAINER_CREATING: &str = "ContainerCreating";
pub(crate) const POD_INITIALIZING: &str = "PodInitializing";
pub(crate) const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
pub(crate) const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
pub(crate) const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
pub(crate) const RUN_CONTAINER_ERROR: &str = "RunContainerError";
pub(crate) const POST_START_HOOK_ERROR: &str = "PostStartHookError";
pub(crate) const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
pub(crate) const ERR_IMAGE_PULL: &str = "ErrImagePull";
pub(crate) const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
pub(crate) const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
pub(crate) const INVALID_IMAGE_NAME: &str = "InvalidImageName";
pub(crate) const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";

// Terminated reasons of containers.
pub(crate) const COMPLETED: &str = "Completed";
pub(crate) const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
pub(crate) const ERROR: &str = "Error";
pub(crate) const OOM_KILLED: &str = "OOMKilled";
pub(crate) const START_ERROR: &str = "StartError";

// Failed steps of a whole pod.
pub(crate) const CREATE_POD_SANDBOX_ERROR: &str = "CreatePodSandboxError";
pub(crate) const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
pub(crate) const FAILED_KILL_POD: &str = "FailedKillPod";
pub(crate) const FAILED_MOUNT: &str = "FailedMount";
pub(crate) const KILL_CONTAINER_ERROR: &str = "KillContainerError";
pub(crate) const KILL_POD_SANDBOX_ERROR: &str = "KillPodSandboxError";
/// No sandbox was made since the node's network is not ready.
pub(crate) const NETWORK_NOT_READY: &str = "NetworkNotReady";

// `status.reason` of pods that the node ends.
pub(crate) const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
pub(crate) const EVICTED: &str = "Evicted";
pub(crate) const PREEMPTING: &str = "Preempting";
/// Every rejection for want of a resource begins so; the resource's name follows.
pub(crate) const OUT_OF: &str = "OutOf";

// Events.
pub(crate) const BACK_OFF: &str = "BackOff";
pub(crate) const FAILED: &str = "Failed";
pub(crate) const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
pub(crate) const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";
pub(crate) const UNHEALTHY: &str = "Unhealthy";
