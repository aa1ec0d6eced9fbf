//! A container of a pod as Docker inspects it, cut down to what the agent decides on. Pure.

use std::net::IpAddr;

use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use jiff::Timestamp;

use super::{
    names::{self, Identity},
    process::ContainerProcess,
};

/// Where a container is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Created, not started yet.
    Created,
    /// Running since `started_at`.
    Running { pid: i32, started_at: Timestamp },
    /// Exited, or failed to start.
    Exited(Exit),
}

/// How a container has exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i64,
    pub(crate) oom_killed: bool,
    /// Docker's error when it could not start the container.
    pub(crate) error: String,
    /// `None` when it never ran.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Timestamp,
    /// The termination message, filled in by the caller that reads its file.
    pub(crate) message: String,
}

impl Exit {
    /// The exit of a container that was killed without being inspected afterwards.
    pub(crate) fn killed(at: Timestamp) -> Self {
        Self {
            code: 137,
            oom_killed: false,
            error: String::new(),
            started_at: None,
            finished_at: at,
            message: String::new(),
        }
    }
}

/// A container's resource limits in Docker's terms; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes.
    pub(crate) memory: i64,
    /// 1024 for a core.
    pub(crate) cpu_shares: i64,
    /// Microseconds in each period of 100 ms.
    pub(crate) cpu_quota: i64,
}

/// The user that a container's init process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Sorted.
    pub(crate) groups: Vec<u32>,
}

/// One container of a pod: a sandbox, or one attempt at running a container of the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) identity: Identity,
    pub(crate) state: State,
    pub(crate) created_at: Timestamp,
    /// The image as the spec names it.
    pub(crate) image: String,
    /// The image as container statuses show it: the digest of its registry, or its id.
    pub(crate) image_id: String,
    pub(crate) hash: String,
    /// The sandbox that it joined; empty for sandboxes.
    pub(crate) sandbox: String,
    /// Where Docker keeps its log.
    pub(crate) log_path: String,
    /// The addresses that a sandbox was created with.
    pub(crate) addresses: Vec<IpAddr>,
    /// Seconds of grace that its labels carry, for when the pod's spec is no longer known.
    pub(crate) grace: Option<i64>,
    /// The name of Docker's runtime; empty until Docker has reported it.
    pub(crate) runtime: String,
    pub(crate) limits: Limits,
    /// `terminationMessagePolicy: FallbackToLogsOnError`: the end of its log is its message when it fails without one.
    pub(crate) message_from_log: bool,
    /// The user of the running container, filled in by the caller that reads /proc.
    pub(crate) user: Option<User>,
}

impl Instance {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Its id as statuses show it.
    pub(crate) fn container_id(&self) -> String {
        format!("docker://{}", self.id)
    }

    pub(crate) fn is_sandbox(&self) -> bool {
        self.identity.container == names::SANDBOX_NAME
    }

    /// Whether it was started: it runs, or has run to its end. A container whose start has failed has no such time.
    pub(crate) fn has_run(&self) -> bool {
        self.is_running() || self.exit().is_some_and(|exit| exit.started_at.is_some())
    }

    /// How it exited, if it has.
    pub(crate) fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            _ => None,
        }
    }

    /// Its first process, if it runs.
    pub(crate) fn process(&self) -> Option<ContainerProcess> {
        match self.state {
            State::Running { pid, .. } => Some(ContainerProcess::new(pid, &self.id)),
            _ => None,
        }
    }

    /// Reads Docker's response; `None` for containers without labels of ours.
    pub(crate) fn read(answer: &ContainerInspectResponse) -> Option<Self> {
        let config = answer.config.as_ref()?;
        let labels = config.labels.as_ref()?;
        let label = |key: &str| labels.get(key).cloned();
        let host = answer.host_config.as_ref();
        Some(Self {
            id: answer.id.clone()?,
            identity: Identity::read(answer.name.as_deref().unwrap_or(""), labels)?,
            state: state_of(answer),
            created_at: time(answer.created.as_deref()).unwrap_or(Timestamp::UNIX_EPOCH),
            image: config.image.clone().unwrap_or_default(),
            image_id: label(names::IMAGE_SHOWN).or_else(|| answer.image.clone()).unwrap_or_default(),
            hash: label(names::HASH).unwrap_or_default(),
            sandbox: label(names::SANDBOX_ID).unwrap_or_default(),
            log_path: answer.log_path.clone().unwrap_or_default(),
            addresses: label(names::POD_IP)
                .iter()
                // A container may have labels of its image.
                .filter(|_| labels.get(names::TYPE).is_some_and(|kind| kind == names::TYPE_SANDBOX))
                .flat_map(|all| all.split(','))
                .filter_map(|a| a.parse().ok())
                .collect(),
            runtime: host.and_then(|h| h.runtime.clone()).unwrap_or_default(),
            grace: label(names::GRACE).and_then(|text| text.parse().ok()),
            message_from_log: label(names::MESSAGE_POLICY).as_deref() == Some(names::FROM_LOG),
            user: None,
            limits: Limits {
                // A limit that was removed is -1.
                memory: host.and_then(|h| h.memory).unwrap_or(0).max(0),
                cpu_shares: host.and_then(|h| h.cpu_shares).unwrap_or(0),
                // A quota that an update has removed is -1.
                cpu_quota: host.and_then(|h| h.cpu_quota).unwrap_or(0).max(0),
            },
        })
    }
}

fn state_of(answer: &ContainerInspectResponse) -> State {
    let Some(state) = answer.state.as_ref() else { return State::Created };
    let started_at = time(state.started_at.as_deref());
    if state.running == Some(true) {
        return State::Running {
            pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
            started_at: started_at.unwrap_or(Timestamp::UNIX_EPOCH),
        };
    }
    // A container whose start failed stays "created" with an error and a code of 126 to 128.
    let error = state.error.clone().unwrap_or_default();
    if state.status == Some(ContainerStateStatusEnum::CREATED) && error.is_empty() {
        return State::Created;
    }
    State::Exited(Exit {
        code: state.exit_code.unwrap_or(0),
        oom_killed: state.oom_killed == Some(true),
        error,
        started_at,
        finished_at: time(state.finished_at.as_deref())
            .or_else(|| time(answer.created.as_deref()))
            .unwrap_or(Timestamp::UNIX_EPOCH),
        message: String::new(),
    })
}

/// Docker writes the year 1 for "never".
fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok().filter(|at: &Timestamp| at.as_second() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(state: &str) -> Instance {
        let answer: ContainerInspectResponse = serde_json::from_str(&format!(
            r#"{{"Id":"abc","Name":"/k8s_main_p_n_u_1","Created":"2026-01-01T00:00:00.5Z","Image":"sha256:1","State":{state},
                "Config":{{"Image":"i:1","Labels":{{"io.kubernetes.docker.type":"container","io.kubernetes.pod.name":"p",
                "io.kubernetes.pod.namespace":"n","io.kubernetes.pod.uid":"u","io.kubernetes.container.name":"main"}}}}}}"#
        ))
        .unwrap();
        Instance::read(&answer).unwrap()
    }

    #[test]
    fn states() {
        let never = r#""StartedAt":"0001-01-01T00:00:00Z","FinishedAt":"0001-01-01T00:00:00Z""#;
        let created = read(&format!(r#"{{"Status":"created","Running":false,{never}}}"#));
        assert_eq!(created.state, State::Created);
        let running = read(r#"{"Status":"running","Running":true,"Pid":7,"StartedAt":"2026-01-01T00:00:01Z"}"#);
        assert_eq!(running.process(), Some(ContainerProcess::of(7, &running.id)));
        let refused =
            read(&format!(r#"{{"Status":"created","Running":false,"ExitCode":127,"Error":"no such file",{never}}}"#));
        let State::Exited(exit) = refused.state else { panic!("it ended") };
        assert_eq!((exit.code, exit.error.as_str(), exit.started_at), (127, "no such file", None));
        let killed = read(
            r#"{"Status":"exited","Running":false,"OOMKilled":true,"ExitCode":137,"StartedAt":"2026-01-01T00:00:01Z","FinishedAt":"2026-01-01T00:00:02Z"}"#,
        );
        let State::Exited(exit) = killed.state else { panic!("it ended") };
        assert!(exit.oom_killed && exit.finished_at > exit.started_at.unwrap());
    }

    #[test]
    fn a_container_of_somebody_else_is_not_ours() {
        let answer: ContainerInspectResponse =
            serde_json::from_str(r#"{"Id":"x","Name":"/x","Config":{"Labels":{"a":"b"}}}"#).unwrap();
        assert_eq!(Instance::read(&answer), None);
    }
}
