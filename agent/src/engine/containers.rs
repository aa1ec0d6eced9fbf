//! Calls that create, start, stop and remove containers, and list or inspect them. Callers bound how many run at once,
//! since Docker serialises much of its work.

use std::{collections::HashMap, time::Duration};

use bollard::{
    Docker,
    models::{
        ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, ContainerUpdateBody,
    },
    query_parameters::{
        CreateContainerOptions, InspectContainerOptions, KillContainerOptions, ListContainersOptions,
        RemoveContainerOptions, StartContainerOptions, StopContainerOptions,
    },
};

use super::{
    Cause, Engine, EngineError, check,
    docker_api::{CREATE, Contract, INFO, INSPECT, KILL, LIST, PING, REMOVE, START, STOP, UPDATE},
    inspect::{Instance, Limits},
    names,
};
use crate::cgroup::{limits::CPU_PERIOD, tree::Resource};

/// The first and the longest wait for a removal that is under way.
const REMOVAL_POLL_MIN: Duration = Duration::from_millis(50);
const REMOVAL_POLL_MAX: Duration = Duration::from_secs(4);

/// An entry of Docker's list of containers, which needs no inspection of each.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) pod_uid: String,
    pub(crate) running: bool,
    /// A helper container: never started, it gives access to the files of its image.
    pub(crate) helper: bool,
    /// Seconds since 1970.
    pub(crate) created: i64,
}

impl Engine {
    /// Creates a container. A name left taken by a crash is freed first, and the call retried. If the call fails, or
    /// its outcome is unknown, whatever Docker created is removed, since no one tracks it.
    pub(crate) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, EngineError> {
        let attempt = || format!("container {name} could not be created");
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        let make = async || {
            let (options, body) = (options.clone(), body.clone());
            let create = async |docker: Docker| docker.create_container(Some(options), body).await;
            self.get(&CREATE, attempt, create).await.map(|made| made.id)
        };
        let made = match make().await {
            Err(error) if error.status() == Some(409) => {
                self.remove(name).await?;
                make().await
            }
            made => made,
        };
        if let Err(error) = made.as_ref()
            && !error.is_refusal()
            && let Err(left) = self.remove(name).await
        {
            tracing::debug!(error = %left, container = name, "failed to remove what a failed call may have created; the next list finds it");
        }
        made
    }

    pub(crate) async fn start(&self, id: &str) -> Result<(), EngineError> {
        let attempt = || format!("container {} could not be started", short(id));
        let start = async |docker: Docker| docker.start_container(id, None::<StartContainerOptions>).await;
        self.done(&START, attempt, start).await
    }

    /// Changes the limits of one resource of a running container.
    pub(crate) async fn update(&self, id: &str, limits: &Limits, resource: Resource) -> Result<(), EngineError> {
        // To Docker a missing value means no change. A memory limit can be changed but not removed.
        let memory = (limits.memory > 0).then_some(limits.memory);
        let body = match resource {
            // No swap: the limit of memory and swap must grow with that of memory, or Docker refuses.
            Resource::Memory => ContainerUpdateBody { memory, memory_swap: memory, ..ContainerUpdateBody::default() },
            Resource::Cpu => ContainerUpdateBody {
                cpu_shares: Some(limits.cpu_shares),
                cpu_quota: Some(if limits.cpu_quota > 0 { limits.cpu_quota } else { -1 }),
                cpu_period: Some(CPU_PERIOD),
                ..ContainerUpdateBody::default()
            },
        };
        let attempt = || format!("container {} could not be resized", short(id));
        self.done(&UPDATE, attempt, async |docker: Docker| docker.update_container(id, body).await).await
    }

    /// Inspects a container; `None` when it does not exist or carries no labels of ours.
    pub(crate) async fn inspect(&self, id: &str) -> Result<Option<Instance>, EngineError> {
        Ok(self.inspected(id).await?.as_ref().and_then(Instance::read))
    }

    /// What Docker says of a container; `None` when it does not exist.
    pub(super) async fn inspected(&self, id: &str) -> Result<Option<ContainerInspectResponse>, EngineError> {
        let attempt = || format!("container {} could not be inspected", short(id));
        let look = async |docker: Docker| docker.inspect_container(id, None::<InspectContainerOptions>).await;
        self.ask(&INSPECT, attempt, look).await
    }

    /// Docker's list of containers.
    pub(super) async fn listed(
        &self,
        attempt: &str,
        options: Option<ListContainersOptions>,
    ) -> Result<Vec<ContainerSummary>, EngineError> {
        self.get(&LIST, || attempt.to_owned(), async |docker: Docker| docker.list_containers(options).await).await
    }

    /// Stops a container: SIGTERM, and SIGKILL after `grace`. One that does not exist or has exited is success.
    pub(crate) async fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions { t: Some(seconds), ..StopContainerOptions::default() };
        let attempt = || format!("container {} could not be stopped", short(id));
        let contract = Contract { limit: grace.saturating_add(STOP.limit), ..STOP };
        self.done(&contract, attempt, async |docker: Docker| docker.stop_container(id, Some(options)).await).await
    }

    /// Kills a container at once. One that does not exist or has exited is success.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), EngineError> {
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        let attempt = || format!("container {} could not be killed", short(id));
        self.done(&KILL, attempt, async |docker: Docker| docker.kill_container(id, Some(options)).await).await
    }

    /// Removes a container, running or not, with its anonymous volumes. One that does not exist is success; one that
    /// another request is removing is waited for.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), EngineError> {
        let attempt = || format!("container {} could not be removed", short(id));
        let mut wait = REMOVAL_POLL_MIN;
        loop {
            let options = RemoveContainerOptions { force: true, v: true, link: false };
            let remove = async |docker: Docker| docker.remove_container(id, Some(options)).await;
            match self.done(&REMOVE, attempt, remove).await {
                Err(error) if error.status() == Some(409) && wait <= REMOVAL_POLL_MAX => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
                result => return result,
            }
        }
    }

    /// Every container with our labels, in any state.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        let filters = HashMap::from([("label".to_owned(), vec![names::TYPE.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let all = self.listed("the containers of pods could not be listed", Some(options)).await?;
        Ok(all
            .into_iter()
            .filter_map(|c| {
                let labels = c.labels?;
                // A container has the labels of its image, too, so that these alone do not make it one of ours: those
                // of pods have names of their own, and a helper is never started.
                let never_started = c.state == Some(ContainerSummaryStateEnum::CREATED);
                let helper = never_started && labels.get(names::TYPE).is_some_and(|kind| kind == names::TYPE_HELPER);
                if !helper && !c.names.iter().flatten().any(|name| names::is_pods_name(name)) {
                    return None;
                }
                Some(Listed {
                    id: c.id?,
                    pod_uid: labels.get(names::POD_UID).cloned().or_else(|| helper.then(String::new))?,
                    helper,
                    created: c.created.unwrap_or(i64::MAX),
                    // A paused one runs, as an inspection says, too.
                    running: matches!(
                        c.state,
                        Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED)
                    ),
                })
            })
            .collect())
    }

    /// Pings Docker, which costs it nothing.
    pub(crate) async fn ping(&self) -> Result<(), EngineError> {
        let ping = async |docker: Docker| docker.ping().await.map(drop);
        self.done(&PING, || "Docker could not be pinged".to_owned(), ping).await
    }

    /// Docker's version, cgroup driver and runtimes, of one that can run pods; also how the agent learns whether Docker answers, and in which
    /// version of its API.
    pub(crate) async fn info(&self) -> Result<Info, EngineError> {
        let api = self.negotiate().await?.to_string();
        let attempt = || "Docker could not be asked for its state".to_owned();
        let info = self.get(&INFO, attempt, async |docker: Docker| docker.info().await).await?;
        if let Some((why, advice)) = check::unfit(&info) {
            let (attempt, reason) = ("Docker cannot run pods".to_owned(), format!("{why}; {advice}"));
            return Err(EngineError { attempt, reason, cause: Cause::Failed });
        }
        Ok(Info {
            api,
            version: info.server_version.unwrap_or_default(),
            systemd_cgroups: info.cgroup_driver.is_some_and(|d| d.to_string() == "systemd"),
            runtimes: info.runtimes.into_iter().flat_map(std::collections::HashMap::into_keys).collect(),
        })
    }
}

/// What the agent needs of Docker's `GET /info`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) version: String,
    /// The version of the API that is spoken.
    pub(crate) api: String,
    pub(crate) systemd_cgroups: bool,
    /// Names of runtimes, which RuntimeClasses may name as their handlers.
    pub(crate) runtimes: std::collections::BTreeSet<String>,
}

/// The first twelve digits of an id, as Docker's own tools show it.
pub(crate) fn short(id: &str) -> &str {
    if id.len() == 64 { &id[..12] } else { id }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::engine::fake;

    /// What Docker answers, in turn, and what comes of it.
    #[tokio::test(start_paused = true)]
    async fn a_removal_is_over_when_docker_says_so() {
        const NO_CONTENT: &str = "204 No Content";
        const CONFLICT: &str = "409 Conflict";
        for (answers, removed, asked) in [
            (&[NO_CONTENT][..], true, 1),
            (&["404 Not Found"], true, 1),
            (&[CONFLICT, CONFLICT, "404 Not Found"], true, 3),
            // The other request has failed, and this one does it.
            (&[CONFLICT, NO_CONTENT], true, 2),
            (&["500 Internal Server Error"], false, 1),
            // It hangs there for ever.
            (&[CONFLICT], false, 8),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let count = std::sync::Arc::new(AtomicU32::new(0));
            let counted = std::sync::Arc::clone(&count);
            let engine = fake::scripted(dir.path(), move |_| {
                let index = usize::try_from(counted.fetch_add(1, Ordering::Relaxed)).unwrap();
                let status = answers.get(index).or(answers.last()).unwrap();
                format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}")
            });
            assert_eq!(engine.remove("c").await.is_ok(), removed, "{answers:?}");
            assert_eq!(count.load(Ordering::Relaxed), asked, "{answers:?}");
        }
    }

    /// What Docker answers to a creation, and whether what there may be of it is removed then.
    #[tokio::test]
    async fn what_nobody_knows_to_be_created_is_removed() {
        for (answer, removes) in [
            ("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}", true),
            ("", true),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", false),
            ("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (lines, mut asked) = tokio::sync::mpsc::unbounded_channel();
            let engine = fake::scripted(dir.path(), move |line| {
                lines.send(line.to_owned()).unwrap();
                if line.starts_with("DELETE") { fake::json(204, "") } else { answer.to_owned() }
            });
            engine.create("c", super::ContainerCreateBody::default()).await.unwrap_err();
            let mut removed = false;
            while let Ok(line) = asked.try_recv() {
                removed |= line.starts_with("DELETE /containers/c?");
            }
            assert_eq!(removed, removes, "{answer:?}");
        }
    }
}
