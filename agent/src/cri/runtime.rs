//! The calls about the runtime, containers and sandboxes.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{
    Cri,
    convert::{self, PodsByUid},
    filter,
    grpc::{self, Code, Status},
    messages::{
        Container, ContainerFilter, ContainerStatusRequest, ContainerStatusResponse, ExecSyncRequest, ExecSyncResponse,
        ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse, PodSandboxFilter,
        PodSandboxStatusRequest, PodSandboxStatusResponse, RuntimeCondition, RuntimeStatus, StatusRequest,
        StatusResponse, StopContainerRequest, StopContainerResponse, Texts, VersionRequest, VersionResponse,
    },
};
use crate::{
    engine::{Cause, EngineError, Health, inspect::Instance},
    pod_containers::Instances,
};

/// The version of CRI's messages that kubelet writes, and that upstream's runtimes answer with.
const KUBE_API_VERSION: &str = "0.1.0";
/// What ids in statuses begin with: OpenKruise compares the two.
const RUNTIME_NAME: &str = "docker";
const RUNTIME_API_VERSION: &str = "v1";
/// What an answer has besides the output of its command.
const EXEC_OVERHEAD: usize = 64;
/// How long an answer waits until this agent has seen what Docker did: the next call then finds it in the table.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// All containers as they are now, and the pods.
pub(super) struct Seen {
    containers: Vec<Instances>,
    pods: Arc<Vec<Arc<Pod>>>,
}

impl Seen {
    pub(super) fn pods(&self) -> PodsByUid<'_> {
        PodsByUid::of(self.pods.iter().map(AsRef::as_ref))
    }

    fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.containers.iter().flat_map(|of_pod| of_pod.iter())
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &Instance> {
        self.instances().filter(|instance| !instance.is_sandbox())
    }

    fn sandboxes(&self) -> impl Iterator<Item = &Instance> {
        self.instances().filter(|instance| instance.is_sandbox())
    }

    /// The container of this id.
    pub(super) fn container(&self, id: &str) -> Result<&Instance, Status> {
        filter::by_id("container", id, self.containers(), |instance| &instance.id)
    }

    /// Those that a filter matches, each with how it is shown.
    pub(super) fn matching(&self, wanted: &ContainerFilter) -> Vec<(&Instance, Container)> {
        let pods = self.pods();
        let shown = self.containers().map(|instance| (instance, convert::container(instance, pods.get(instance))));
        shown.filter(|(_, container)| filter::container(wanted, container)).collect()
    }
}

/// What a client learns of a call to Docker that failed.
pub(super) fn status_of(error: &EngineError) -> Status {
    let code = match error.cause {
        Cause::Unreachable => Code::Unavailable,
        Cause::Refused(404) => Code::NotFound,
        Cause::Refused(400) => Code::InvalidArgument,
        Cause::Refused(409) => Code::FailedPrecondition,
        Cause::Refused(_) | Cause::Failed => Code::Internal,
    };
    Status::new(code, error.to_string())
}

impl Cri {
    /// The engine's version, while it answers.
    pub(super) fn engine_version(&self) -> Result<String, Status> {
        match &*self.docker.borrow() {
            Health::Up { version } => Ok(version.clone()),
            Health::Unknown => Err(Status::new(Code::Unavailable, "Docker has not answered yet")),
            Health::Down { reason } => Err(Status::new(Code::Unavailable, reason.clone())),
        }
    }

    /// The containers of this moment. Without Docker nobody knows what runs.
    pub(super) fn seen(&self) -> Result<Seen, Status> {
        self.engine_version()?;
        let containers = self.containers.all();
        let containers =
            containers.ok_or_else(|| Status::new(Code::Unavailable, "Docker's containers are not listed yet"))?;
        Ok(Seen { containers, pods: Arc::clone(&self.pods.borrow()) })
    }

    pub(super) fn version(&self, _: &VersionRequest) -> Result<VersionResponse, Status> {
        Ok(VersionResponse {
            version: KUBE_API_VERSION.to_owned(),
            runtime_name: RUNTIME_NAME.to_owned(),
            runtime_version: self.engine_version()?,
            runtime_api_version: RUNTIME_API_VERSION.to_owned(),
        })
    }

    pub(super) fn status(&self, request: &StatusRequest) -> StatusResponse {
        let condition = |kind: &str, reason: &str, problem: Option<String>| RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: if problem.is_some() { reason.to_owned() } else { String::new() },
            message: problem.unwrap_or_default(),
        };
        let docker = self.engine_version();
        let network = self.network.borrow().problem().map(str::to_owned);
        let info = || {
            let version = docker.as_ref().cloned().unwrap_or_default();
            let info = json!({"runtimeName": RUNTIME_NAME, "runtimeVersion": version});
            Texts::from([("info".to_owned(), info.to_string())])
        };
        StatusResponse {
            info: if request.verbose { info() } else { Texts::new() },
            status: Some(RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", "DockerDaemonNotReady", docker.as_ref().err().map(|e| e.message.clone())),
                    condition("NetworkReady", "NetworkPluginNotReady", network),
                ],
            }),
        }
    }

    pub(super) fn list_containers(&self, request: ListContainersRequest) -> Result<ListContainersResponse, Status> {
        let seen = self.seen()?;
        let found = seen.matching(&request.filter.unwrap_or_default());
        Ok(ListContainersResponse { containers: found.into_iter().map(|(_, container)| container).collect() })
    }

    pub(super) fn container_status(&self, request: &ContainerStatusRequest) -> Result<ContainerStatusResponse, Status> {
        let seen = self.seen()?;
        let instance = seen.container(&request.container_id)?;
        Ok(ContainerStatusResponse {
            status: Some(convert::container_status(instance, seen.pods().get(instance))),
            info: if request.verbose { convert::container_info(instance) } else { Texts::new() },
        })
    }

    /// Stops a container. To its pod's worker that is an exit like any other.
    pub(super) async fn stop_container(&self, request: &StopContainerRequest) -> Result<StopContainerResponse, Status> {
        // From before the call, so that the exit is not missed.
        let mut changes = self.containers.follow();
        let seen = self.seen()?;
        let instance = seen.container(&request.container_id)?;
        if instance.is_running() {
            let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
            tracing::info!(
                container = instance.identity.container,
                pod = instance.identity.pod,
                namespace = instance.identity.namespace,
                ?grace,
                "stopping a container for a client of the CRI socket"
            );
            self.engine.stop(&instance.id, grace).await.map_err(|error| status_of(&error))?;
            let exited = async {
                while self.runs(&instance.id) {
                    let Some(changes) = &mut changes else { return };
                    if changes.changed().await.is_none() {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(SETTLE_TIMEOUT, exited).await;
        }
        Ok(StopContainerResponse {})
    }

    fn runs(&self, id: &str) -> bool {
        let all = self.containers.all().unwrap_or_default();
        all.iter().flat_map(|of_pod| of_pod.iter()).any(|instance| instance.id == id && instance.is_running())
    }

    pub(super) async fn exec_sync(&self, request: &ExecSyncRequest) -> Result<ExecSyncResponse, Status> {
        let seen = self.seen()?;
        let instance = seen.container(&request.container_id)?;
        if request.cmd.is_empty() {
            return Err(Status::new(Code::InvalidArgument, "the command is missing"));
        }
        if !instance.is_running() {
            let why = format!("container {:?} is not running", instance.identity.container);
            return Err(Status::new(Code::FailedPrecondition, why));
        }
        let output = self.engine.exec_apart(&instance.id, &request.cmd, grpc::MAX_MESSAGE_BYTES - EXEC_OVERHEAD);
        let ended = match u64::try_from(request.timeout) {
            Ok(seconds @ 1..) => {
                // What is dropped is killed.
                let ended = tokio::time::timeout(Duration::from_secs(seconds), output).await;
                ended.map_err(|_| {
                    Status::new(
                        Code::DeadlineExceeded,
                        format!("command timed out after {seconds} s: {:?}", request.cmd),
                    )
                })?
            }
            _ => output.await,
        };
        let ended = ended.map_err(|error| status_of(&error))?;
        Ok(ExecSyncResponse {
            stdout: ended.stdout,
            stderr: ended.stderr,
            exit_code: i32::try_from(ended.code).unwrap_or(i32::MAX),
        })
    }

    pub(super) fn list_pod_sandbox(&self, request: ListPodSandboxRequest) -> Result<ListPodSandboxResponse, Status> {
        let (seen, wanted): (_, PodSandboxFilter) = (self.seen()?, request.filter.unwrap_or_default());
        let pods = seen.pods();
        let shown = seen.sandboxes().map(|instance| convert::sandbox(instance, pods.get(instance)));
        Ok(ListPodSandboxResponse { items: shown.filter(|sandbox| filter::sandbox(&wanted, sandbox)).collect() })
    }

    pub(super) fn pod_sandbox_status(
        &self,
        request: &PodSandboxStatusRequest,
    ) -> Result<PodSandboxStatusResponse, Status> {
        let seen = self.seen()?;
        let instance = filter::by_id("sandbox", &request.pod_sandbox_id, seen.sandboxes(), |instance| &instance.id)?;
        Ok(PodSandboxStatusResponse {
            status: Some(convert::sandbox_status(instance, seen.pods().get(instance))),
            info: if request.verbose { convert::container_info(instance) } else { Texts::new() },
        })
    }
}
