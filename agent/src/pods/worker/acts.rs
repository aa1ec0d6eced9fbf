//! From what the plan says to steps that run.

use super::*;
use crate::volumes::follow::{Contents, Need};

impl Worker {
    pub(super) fn push(&mut self, key: Key, step: impl Future<Output = Outcome> + Send + 'static) {
        self.observed.in_flight.insert(key.clone());
        self.steps.push(step.map(move |outcome| (key, outcome)).boxed());
    }

    /// What tells a step that it is given up.
    fn token(&mut self, key: &Key) -> CancellationToken {
        let token = CancellationToken::new();
        self.given_up.insert(key.clone(), token.clone());
        token
    }

    /// Takes a step that may be given up at any point.
    fn push_until_given_up(&mut self, key: Key, step: impl Future<Output = Outcome> + Send + 'static) {
        let given_up = self.token(&key).cancelled_owned();
        self.push(key, async move {
            tokio::select! {
                biased;
                outcome = step => outcome,
                () = given_up => Outcome::GivenUp,
            }
        });
    }

    /// The hooks of a container that has ended are waited for no longer.
    pub(super) fn give_up_hooks(&mut self, id: &str) {
        for key in [Key::PostStart(id.to_owned()), Key::Container(id.to_owned())] {
            if let Some(token) = self.given_up.get(&key) {
                token.cancel();
            }
        }
        if self.observed.in_flight.contains(&Key::PostStart(id.to_owned())) {
            // Who comes after the container does not wait for a hook that nobody can run any more.
            self.observed.hooked.insert(id.to_owned());
        }
    }

    /// The objects that the pod is made of.
    fn contents(&self, need: Need) -> Contents {
        Contents::new(self.shared.client.clone(), self.followed.clone(), need)
    }

    pub(super) fn container(&self, name: &str) -> Option<Container> {
        spec::container(self.pod.as_ref()?.spec.as_ref()?, name)
    }

    pub(super) fn asked(&self, container: &str, id: String) -> Option<steps::Asked> {
        let pod = self.pod.clone()?;
        let host = pod.spec.as_ref().is_some_and(spec::host_network);
        let address =
            if host { Some(self.shared.config.node_ips.first()) } else { self.observed.addresses.first().copied() };
        Some(steps::Asked { container: self.container(container)?, pod, id, address })
    }

    pub(super) fn start(&mut self, action: Action) {
        let key = action.key();
        let now = self.now();
        let shared = Arc::clone(&self.shared);
        let pod = match action {
            Action::StartSandbox { .. } | Action::Create { .. } => self.pod_as_held(),
            _ => self.pod.clone(),
        };
        // Steps that end a pod need no object; those that run one have it.
        match (action, pod) {
            (Action::PrepareVolumes, Some(pod)) => {
                let given_up = self.token(&key);
                self.push(key, steps::prepare_volumes(shared, pod, self.contents(Need::Now), given_up));
            }
            (Action::RefreshVolumes, Some(pod)) => {
                self.observed.stale = None;
                self.push(key, steps::refresh_volumes(shared, pod, self.contents(Need::Told)));
            }
            (Action::EnsureImage { container }, Some(pod)) => {
                if let Some(container) = self.container(&container) {
                    self.start.iter_mut().for_each(counted::Start::asks_for_image);
                    self.push_until_given_up(key, steps::ensure_image(shared, pod, container));
                }
            }
            (Action::CreateSandbox { attempt }, Some(pod)) => {
                if attempt > 0 {
                    self.shared.event(
                        &pod,
                        None,
                        Severity::Normal,
                        "SandboxChanged",
                        "Pod sandbox changed, it will be killed and re-created.",
                    );
                }
                self.push(key, steps::create_sandbox(shared, pod, attempt));
            }
            (Action::StartSandbox { id }, Some(pod)) => {
                if let Some(sandbox) = self.observed.instances.iter().find(|i| i.id == id).cloned() {
                    self.push(key, steps::start_sandbox(shared, pod, sandbox));
                }
            }
            (Action::Create { container, attempt, sandbox }, Some(pod)) => {
                self.create(key, pod, &container, attempt, sandbox)
            }
            (Action::Start { container, id }, Some(pod)) => self.push(key, steps::start(shared, pod, container, id)),
            (Action::PostStart { container, id }, Some(_)) => {
                if let Some(asked) = self.asked(&container, id) {
                    self.push_until_given_up(key, steps::post_start(shared, asked));
                }
            }
            (Action::Probe { container, id, kind }, Some(_)) => {
                if let Some(asked) = self.asked(&container, id) {
                    self.push(key, steps::probe(shared, asked, kind));
                }
            }
            (Action::Resize { container, id }, Some(_)) => {
                if let Some(asked) = self.asked(&container, id) {
                    self.push(key, steps::resize(shared, asked));
                }
            }
            (Action::Hasten { id, grace }, _) => {
                self.observed.stopping.insert(id.clone(), after(now, grace));
                // Its preStop hook has had its time.
                if let Some(token) = self.given_up.get(&Key::Container(id.clone())) {
                    token.cancel();
                }
                self.push(key, steps::hasten(shared, id, grace));
            }
            (Action::Stop { container, id, grace, why }, pod) => {
                let first = self.observed.stopping.insert(id.clone(), after(now, grace)).is_none();
                if let Some(pod) = pod.filter(|_| first) {
                    let message = if why.is_empty() { format!("Stopping container {container}") } else { why };
                    self.shared.event(&pod, Some(&container), Severity::Normal, "Killing", message);
                }
                let asked = self.asked(&container, id.clone());
                self.listen(&id);
                let hook_over = self.token(&key);
                self.push(key, steps::stop(shared, id, grace, asked, hook_over));
            }
            (Action::Remove { id }, _) => {
                if let Some(instance) = self.observed.instances.iter().find(|i| i.id == id).cloned() {
                    self.push(key, steps::remove(shared, instance));
                }
            }
            (Action::RemoveSandbox { id }, _) => {
                // The address belongs to the newest sandbox; an older one no longer has it.
                let newest = self.observed.sandbox().is_some_and(|s| s.id == id);
                let detach = newest.then(|| self.uid.clone());
                self.push(key, steps::remove_sandbox(shared, id, detach));
            }
            (Action::ClearVolumes, _) => self.push(key, steps::clear_volumes(shared, self.uid.clone())),
            (Action::TearDown, _) => self.push(key, steps::tear_down(shared, self.uid.clone())),
            (Action::Forget, Some(pod)) => {
                self.release();
                self.push(key, steps::forget(shared, pod));
            }
            (_, None) => {}
        }
    }

    /// Hears from the kernel when the processes of a container have ended: Docker tells it a moment later, and what waits
    /// for it need not.
    fn listen(&mut self, id: &str) {
        let key = Key::Exit(id.to_owned());
        let pid = self.observed.instances.iter().find(|i| i.id == id).and_then(Instance::pid);
        let first = pid.filter(|_| !self.observed.in_flight.contains(&key)).and_then(|pid| FirstProcess::of(pid, id));
        if let Some(first) = first {
            let id = id.to_owned();
            self.push(key, async move {
                first.end().await;
                Outcome::Silent { id }
            });
        }
    }

    /// Gives back what the pod held of the node, before anybody can hear that it is over: the next one may come at once.
    pub(super) fn release(&mut self) {
        self.released = true;
        self.shared.hold(&self.uid, None);
    }

    pub(super) fn create(&mut self, key: Key, pod: Arc<Pod>, name: &str, attempt: u32, sandbox: String) {
        let Some(container) = pod.spec.as_ref().and_then(|s| spec::container(s, name)) else { return };
        let Some(ImageState::Present { id, shown, user }) = self.observed.images.get(name).cloned() else { return };
        let request = steps::CreateRequest {
            container,
            attempt,
            sandbox,
            image_id: id,
            image_shown: shown,
            image_user: user,
            volumes: Arc::clone(&self.volumes),
            contents: self.contents(Need::Now),
            target: self.target(name),
            addresses: self.observed.addresses.clone(),
        };
        self.push(key, steps::create(Arc::clone(&self.shared), pod, request));
    }

    /// The running container whose processes an ephemeral one wants to see.
    pub(super) fn target(&self, name: &str) -> Option<String> {
        let target = spec::target_of(self.pod.as_ref()?.spec.as_ref()?, name)?;
        self.observed.newest(target).filter(|i| i.is_running()).map(|i| i.id.clone())
    }
}
