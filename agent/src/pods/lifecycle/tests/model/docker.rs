//! Docker in the model: its actual state, whatever the worker believes; the effect of a call on it, whether or not the
//! answer arrives; and the events it emits.

use std::collections::{BTreeSet, VecDeque};

use super::*;

/// Why a call has failed, as the worker distinguishes such failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// An answer says so.
    Refused,
    /// There is no answer.
    Unreachable,
}

/// How a step ended, as the worker hears of it.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Volume(String, bool),
    Image(String, Result<(), Fault>),
    SandboxCreated(Result<Instance, Fault>),
    SandboxStarted(Result<Instance, Fault>),
    Created(String, Result<Instance, Fault>),
    Started(String, Result<Instance, (Fault, Option<Instance>)>),
    Inspected(String, Result<Option<Instance>, Fault>),
    PostStart(String, bool),
    PreStop(String),
    Probed(String, String, ProbeType, bool),
    Removed(String, Result<(), Fault>),
    VolumesReleased(Result<(), Fault>),
    CleanedUp(Result<(), Fault>),
    DeletedFromApi(Result<(), Fault>),
}

/// An event that Docker emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    Started,
    Died,
    Destroyed,
}

/// What a worker waits for.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Plan(Action),
    Inspect(String),
}

impl Call {
    pub(super) fn key(&self) -> StepKey {
        match self {
            Self::Plan(action) => action.key(),
            Self::Inspect(id) => StepKey::Inspect(id.clone()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Docker {
    pub(super) containers: Vec<Instance>,
    /// Sandboxes with a network.
    pub(super) attached: BTreeSet<String>,
    pub(super) paused: BTreeSet<String>,
    pub(super) has_image: bool,
    pub(super) news: VecDeque<(String, News)>,
    /// Abandoned calls that Docker has accepted and will still carry out.
    pub(super) late: Vec<Action>,
    /// Containers whose postStart hook was run, however it ended.
    pub(super) hooked: BTreeSet<String>,
    /// Containers that were started again after they had run.
    pub(super) again: Vec<String>,
    made: u32,
}

impl Docker {
    pub(super) fn get(&self, id: &str) -> Option<&Instance> {
        self.containers.iter().find(|c| c.id == id)
    }

    pub(super) fn runs(&self, id: &str) -> bool {
        self.get(id).is_some_and(Instance::is_running)
    }

    fn set(&mut self, id: &str, state: State, news: News) {
        if let Some(found) = self.containers.iter_mut().find(|c| c.id == id) {
            found.state = state;
            self.news.push_back((id.to_owned(), news));
        }
    }

    /// A container that runs exits.
    pub(super) fn exit(&mut self, id: &str, code: i64, now: i64) {
        if self.runs(id) {
            self.attached.remove(id);
            self.paused.remove(id);
            self.set(id, exited(code, now - 1, now), News::Died);
        }
    }

    pub(super) fn remove(&mut self, id: &str) {
        let (before, runs) = (self.containers.len(), self.runs(id));
        self.containers.retain(|c| c.id != id);
        self.attached.remove(id);
        self.paused.remove(id);
        if self.containers.len() < before {
            if runs {
                self.news.push_back((id.to_owned(), News::Died));
            }
            self.news.push_back((id.to_owned(), News::Destroyed));
        }
    }

    /// Creates a container; one that has the name already makes way, as the engine module sees to.
    fn create(&mut self, name: &str, attempt: u32, sandbox: &str, now: i64) -> Instance {
        let same = |c: &&Instance| c.identity.container == name && c.identity.attempt == attempt;
        if let Some(id) = self.containers.iter().find(same).map(|c| c.id.clone()) {
            self.remove(&id);
        }
        self.made += 1;
        let mut made = instance(name, attempt, State::Created);
        made.id = format!("{name}-{attempt}-{}", self.made);
        sandbox.clone_into(&mut made.sandbox);
        made.created_at = at(now);
        self.containers.push(made.clone());
        made
    }

    /// Starts a container; gives whether that is accepted.
    fn start(&mut self, id: &str, now: i64) -> bool {
        let Some(found) = self.get(id).cloned() else { return false };
        // The step starts no sandbox that has run, as far as it knows.
        if found.is_running() || (found.is_sandbox() && found.has_run()) {
            return true;
        }
        if found.has_run() {
            self.again.push(id.to_owned());
        }
        if found.is_sandbox() || self.runs(&found.sandbox) {
            self.set(id, running(now), News::Started);
            return true;
        }
        // It cannot join the namespaces of a container that does not run, which is the container's failure, without an event.
        if let (State::Exited(exit), Some(is)) =
            (exited(128, now, now), self.containers.iter_mut().find(|c| c.id == id))
        {
            let error = "cannot join network of a non running container".to_owned();
            is.state = State::Exited(Exit { error, started_at: None, ..exit });
        }
        false
    }

    /// Carries out an abandoned call. A container started since is left alone, since Docker serializes the calls.
    pub(super) fn act_late(&mut self, action: Action, now: i64) {
        let is_created = |id: &str| self.get(id).is_none_or(|c| c.state == State::Created);
        let overtaken = match &action {
            Action::Start { id, .. } | Action::StartSandbox { id } => !is_created(id),
            _ => false,
        };
        if !overtaken {
            // To attach a sandbox is the agent's part.
            let attached = self.attached.clone();
            drop(self.carry_out(&Call::Plan(action), true, now));
            self.attached.retain(|id| attached.contains(id));
        }
    }

    /// Inspecting, starting, stopping or removing a container waits for a call that starts it: Docker holds its lock.
    pub(super) fn finish_starts(&mut self, of: impl Fn(&str) -> bool, now: i64) {
        let starts = |action: &mut Action| match action {
            Action::Start { id, .. } | Action::StartSandbox { id } => of(id),
            _ => false,
        };
        let held: Vec<Action> = self.late.extract_if(.., starts).collect();
        held.into_iter().for_each(|action| self.act_late(action, now));
    }

    /// Carries out a call. `good` is how hooks and probes end.
    pub(super) fn act(&mut self, call: &Call, good: bool, now: i64) -> Reply {
        self.finish_starts(|id| call.key().reads(id), now);
        self.carry_out(call, good, now)
    }

    fn carry_out(&mut self, call: &Call, good: bool, now: i64) -> Reply {
        let action = match call {
            Call::Inspect(id) => return Reply::Inspected(id.clone(), Ok(self.get(id).cloned())),
            Call::Plan(action) => action,
        };
        match action {
            Action::PrepareVolume { volume } | Action::RefreshVolume { volume } => Reply::Volume(volume.clone(), good),
            Action::EnsureImage { container, .. } => {
                self.has_image = true;
                Reply::Image(container.clone(), Ok(()))
            }
            Action::CreateSandbox { attempt } => {
                Reply::SandboxCreated(Ok(self.create(SANDBOX_NAME, *attempt, "", now)))
            }
            Action::StartSandbox { id } => {
                let accepted = self.start(id, now);
                let running = self.get(id).filter(|instance| accepted && instance.is_running());
                let started = running.cloned().ok_or(Fault::Refused);
                if started.is_ok() {
                    self.attached.insert(id.clone());
                }
                Reply::SandboxStarted(started)
            }
            Action::Create { container, .. } if !self.has_image => {
                Reply::Created(container.clone(), Err(Fault::Refused))
            }
            Action::Create { container, attempt, sandbox } => {
                Reply::Created(container.clone(), Ok(self.create(container, *attempt, sandbox, now)))
            }
            Action::Start { container, id } => {
                let accepted = self.start(id, now);
                match self.get(id).cloned() {
                    Some(instance) if accepted => Reply::Started(container.clone(), Ok(instance)),
                    Some(instance) => Reply::Started(container.clone(), Err((Fault::Refused, Some(instance)))),
                    // The step looks at it after a failed start.
                    None => Reply::Inspected(id.clone(), Ok(None)),
                }
            }
            Action::PostStart { id, .. } => {
                self.hooked.insert(id.clone());
                Reply::PostStart(id.clone(), good && !self.paused.contains(id))
            }
            Action::Probe { container, id, probe } => {
                let good = good && self.runs(id) && !self.paused.contains(id);
                Reply::Probed(container.clone(), id.clone(), *probe, good)
            }
            Action::PreStop { id, .. } => Reply::PreStop(id.clone()),
            Action::Stop { id, .. } | Action::ShortenGrace { id, .. } => {
                self.exit(id, 137, now);
                Reply::Inspected(id.clone(), Ok(self.get(id).cloned()))
            }
            Action::Remove { id } | Action::RemoveSandbox { id } => {
                self.remove(id);
                Reply::Removed(id.clone(), Ok(()))
            }
            Action::ReleaseVolumes => Reply::VolumesReleased(Ok(())),
            Action::CleanUp => Reply::CleanedUp(Ok(())),
            Action::DeleteFromApi => Reply::DeletedFromApi(Ok(())),
            Action::Resize(_)
            | Action::ResizePod { .. }
            | Action::ShortenPreStop { .. }
            | Action::CutPreStop { .. } => {
                unreachable!("{action:?} is no call of these pods")
            }
        }
    }

    /// The same call, which fails for the worker. `acted` says whether Docker has carried it out anyway.
    pub(super) fn fail(&mut self, call: &Call, fault: Fault, acted: bool, now: i64) -> Reply {
        if acted {
            drop(self.act(call, true, now));
        } else if fault == Fault::Refused {
            self.finish_starts(|id| call.key().reads(id), now);
        }
        let action = match call {
            Call::Inspect(id) => return Reply::Inspected(id.clone(), Err(fault)),
            Call::Plan(action) => action,
        };
        match action {
            Action::PrepareVolume { volume } | Action::RefreshVolume { volume } => Reply::Volume(volume.clone(), false),
            Action::EnsureImage { container, .. } => Reply::Image(container.clone(), Err(fault)),
            Action::CreateSandbox { attempt } => {
                self.undo_create(SANDBOX_NAME, *attempt, fault);
                Reply::SandboxCreated(Err(fault))
            }
            Action::StartSandbox { .. } => Reply::SandboxStarted(Err(fault)),
            Action::Create { container, attempt, .. } => {
                self.undo_create(container, *attempt, fault);
                Reply::Created(container.clone(), Err(fault))
            }
            Action::Start { container, id } => {
                // The step looks at it after a failed start, where Docker answers.
                let found = self.get(id).filter(|_| fault == Fault::Refused).cloned();
                Reply::Started(
                    container.clone(),
                    match found {
                        Some(instance) if instance.has_run() => Ok(instance),
                        Some(instance) => Err((fault, Some(instance))),
                        None if fault == Fault::Refused => return Reply::Inspected(id.clone(), Ok(None)),
                        None => Err((fault, None)),
                    },
                )
            }
            Action::PostStart { id, .. } => Reply::PostStart(id.clone(), false),
            Action::Probe { container, id, probe } => Reply::Probed(container.clone(), id.clone(), *probe, false),
            Action::Stop { id, .. } | Action::ShortenGrace { id, .. } => Reply::Inspected(id.clone(), Err(fault)),
            Action::Remove { id } | Action::RemoveSandbox { id } => Reply::Removed(id.clone(), Err(fault)),
            Action::ReleaseVolumes => Reply::VolumesReleased(Err(fault)),
            Action::CleanUp => Reply::CleanedUp(Err(fault)),
            Action::DeleteFromApi => Reply::DeletedFromApi(Err(fault)),
            _ => self.act(call, true, now),
        }
    }

    /// What the engine module does after a call of unknown outcome, provided that Docker answers at all.
    fn undo_create(&mut self, name: &str, attempt: u32, fault: Fault) {
        let same = |c: &&Instance| c.identity.container == name && c.identity.attempt == attempt;
        if let (Fault::Refused, Some(id)) = (fault, self.containers.iter().find(same).map(|c| c.id.clone())) {
            self.remove(&id);
        }
    }

    /// Docker restarts. `ends` has a bit for each container that has exited meanwhile: all of them without
    /// live-restore. Pending events are lost.
    pub(super) fn restart(&mut self, code: i64, ends: u32, now: i64) {
        let running = self.containers.iter().filter(|c| c.is_running()).enumerate();
        let ended = running.filter(|(index, _)| ends >> (index % 32) & 1 == 1).map(|(_, c)| c.id.clone());
        ended.collect::<Vec<String>>().iter().for_each(|id| self.exit(id, code, now));
        self.late.clear();
        self.news.clear();
    }
}
