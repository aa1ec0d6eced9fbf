//! Images of containers: looked up, or pulled with the credentials of the pod and the node.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Container, Pod, Secret, Volume};
use kube::Api;
use windlass_kit::{duration, events::Severity, objects::image::Reference};

use super::{
    context::PodContext,
    host_facts,
    outcome::{Outcome, StepError},
};
use crate::{
    engine::{
        EngineError,
        images::{Image, is_registry_unavailable},
    },
    images::{
        self,
        credentials::{self, Credentials, Source},
    },
    metrics::image_size_label,
    node_authorizer::retry_forbidden,
    pods::lifecycle::{observed::ImageState, reasons, spec},
};

/// Looks up or pulls the image of a container, perhaps `ahead` of its turn. One that was present under the id `known`
/// is used without a pull while its name still refers to it.
pub(crate) async fn ensure_image(
    context: Arc<PodContext>,
    pod: Arc<Pod>,
    container: Container,
    known: Option<String>,
    ahead: bool,
) -> Outcome {
    let name = container.name.clone();
    let about = About { container: Some(&name), ahead };
    if let Some(known) = known
        && let Ok(Some(found)) = context.node.engine.image(spec::image_of(&container)).await
        && found.id == known
    {
        return Outcome::Image { container: name, ahead, result: Ok(present(found)) };
    }
    let result = image(&context, &pod, &container, about).await;
    if let Err(error) = result.as_ref()
        && !error.unreachable
    {
        about.event(&context, &pod, Severity::Warning, reasons::FAILED, format!("Error: {}", error.reason));
    }
    Outcome::Image { container: name, ahead, result }
}

/// What events of an image are about.
#[derive(Debug, Clone, Copy)]
struct About<'a> {
    /// `None` for the image of a volume: they are about the pod.
    container: Option<&'a str>,
    /// The container's turn has not come: only success is reported.
    ahead: bool,
}

impl About<'_> {
    fn event(self, context: &PodContext, pod: &Pod, severity: Severity, reason: &str, message: impl Into<String>) {
        if !self.ahead || reason == "Pulled" {
            context.event(pod, self.container, severity, reason, message);
        }
    }
}

/// One image as a pod needs it.
struct ImageRequest<'a> {
    context: &'a PodContext,
    pod: &'a Pod,
    /// The image as the spec names it.
    image: &'a str,
    reference: &'a Reference,
    about: About<'a>,
}

impl ImageRequest<'_> {
    fn event(&self, severity: Severity, reason: &str, message: impl Into<String>) {
        self.about.event(self.context, self.pod, severity, reason, message);
    }

    /// A failure that an event is recorded for.
    fn failed(&self, event: &str, reason: &'static str, message: String) -> StepError {
        self.event(Severity::Warning, event, message.clone());
        StepError::new(reason, message)
    }

    /// The image in Docker's store, where the pod may use it; and the pod's credentials, where they had to be looked
    /// up.
    async fn find_present(&self) -> Result<(Option<ImageState>, Option<Vec<Credentials>>), StepError> {
        let (context, image) = (self.context, self.image);
        let found = context.node.engine.image(image).await;
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok((None, None)),
            Err(error) if error.is_unreachable() => return Err(StepError::of(reasons::IMAGE_INSPECT_ERROR, &error)),
            Err(error) => {
                let message = format!("Failed to inspect image {image:?}: {}", error.reason);
                return Err(self.failed("InspectFailed", reasons::IMAGE_INSPECT_ERROR, message));
            }
        };
        let records = context.node.images.records();
        let mut given = None;
        let usable = records.is_accessible_to_all(self.reference, &found).await || {
            // It was pulled with a secret: a pod that asks for it now must have one, too.
            let given = given.insert(credentials(context, self.pod, self.reference, self.about).await);
            !records.must_pull(self.reference, &found, given).await
        };
        if !usable {
            return Ok((None, given));
        }
        let message = format!("Container image {image:?} already present on machine and can be accessed by the pod");
        self.event(Severity::Normal, "Pulled", message);
        Ok((Some(present(found)), given))
    }

    /// Pulls the image.
    async fn pull(&self, given: Vec<Credentials>) -> Result<ImageState, StepError> {
        let (context, image) = (self.context, self.image);
        let records = context.node.images.records();
        let before = match context.node.engine.image(image).await {
            Ok(found) => found.filter(|found| found.named).map(|found| found.id),
            Err(error) => return Err(StepError::of(reasons::IMAGE_INSPECT_ERROR, &error)),
        };
        if let Err(error) = records.record_intent(self.reference, before.as_deref()).await {
            let message = format!("Failed to record image pull intent for container image {image:?}: {error}");
            return Err(self.failed(reasons::FAILED, reasons::ERR_IMAGE_PULL, message));
        }
        let started = Instant::now();
        let pulled = async {
            let with: Vec<_> = given.iter().map(Credentials::for_docker).collect();
            let pull = with_progress(context.node.images.pulls().pull(image, with), || {
                let progress = context.node.images.progress();
                let words = progress.borrow().values().find(|p| p.image == image).map(images::PullProgress::summary);
                let message = format!("Pulling image {image:?}: {}", words.unwrap_or_default());
                if !self.about.ahead {
                    context.progress(self.pod, self.about.container, "Pulling", message);
                }
            });
            let pulled = pull.await?;
            Ok::<_, EngineError>(context.node.engine.image(image).await?.map(|found| (found, pulled)))
        };
        match pulled.await {
            Ok(Some((found, images::Pulled { took, with, .. }))) => {
                records.record_pulled(self.reference, &found.id, with.and_then(|index| given.get(index))).await;
                context.node.metrics.pulls.observe_duration([image_size_label(found.size)], took);
                let (took, waited) = (duration::format(took), duration::format(started.elapsed()));
                let message = format!(
                    "Successfully pulled image {image:?} in {took} ({waited} including waiting). Image size: {} bytes.",
                    found.size
                );
                self.event(Severity::Normal, "Pulled", message);
                Ok(present(found))
            }
            Ok(None) => {
                records.record_failed(self.reference).await;
                let message = format!("image {image:?} was pulled but is not in Docker's store");
                Err(StepError::new(reasons::ERR_IMAGE_PULL, message))
            }
            Err(error) => {
                records.record_failed(self.reference).await;
                let reason = match is_registry_unavailable(&error.reason) {
                    true => reasons::REGISTRY_UNAVAILABLE,
                    false => reasons::ERR_IMAGE_PULL,
                };
                if !error.is_unreachable() {
                    let message = format!("Failed to pull image {image:?}: {}", error.reason);
                    self.event(Severity::Warning, reasons::FAILED, message);
                }
                Err(StepError { message: error.reason.clone(), ..StepError::of(reason, &error) })
            }
        }
    }
}

fn present(found: Image) -> ImageState {
    ImageState::Present { id: found.id, shown: found.shown, user: found.user }
}

/// Looks an image up, or pulls it, as the container's pull policy says.
async fn image(
    context: &PodContext,
    pod: &Pod,
    container: &Container,
    about: About<'_>,
) -> Result<ImageState, StepError> {
    let image = spec::image_of(container);
    let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    let Some(reference) = Reference::parse(image) else {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
        );
        about.event(context, pod, Severity::Warning, "InspectFailed", message.clone());
        return Err(StepError::new(reasons::INVALID_IMAGE_NAME, message));
    };
    let request = ImageRequest { context, pod, image, reference: &reference, about };
    let mut given = None;
    if policy != "Always" {
        let (present, looked_up) = request.find_present().await?;
        if let Some(present) = present {
            return Ok(present);
        }
        given = looked_up;
        if policy == "Never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            return Err(request.failed("ErrImageNeverPull", reasons::ERR_IMAGE_NEVER_PULL, message));
        }
    }
    request.event(Severity::Normal, "Pulling", format!("Pulling image {image:?}"));
    let given = match given {
        Some(given) => given,
        None => credentials(context, pod, &reference, about).await,
    };
    request.pull(given).await
}

/// How often a pull reports its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// Awaits `work`, and calls `report` from time to time.
async fn with_progress<T>(work: impl Future<Output = T>, report: impl Fn()) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(PROGRESS_INTERVAL, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) => report(),
        }
    }
}

/// The credentials for pulling an image: of the pod's pull secrets, then of the node's own files and plugins.
async fn credentials(context: &PodContext, pod: &Pod, image: &Reference, about: About<'_>) -> Vec<Credentials> {
    let api: Api<Secret> = Api::namespaced(context.node.client.clone(), spec::namespace(pod));
    let names = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()).map(|r| r.name.as_str());
    let (mut configs, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        match retry_forbidden(|| api.get_opt(name)).await {
            Ok(Some(secret)) => {
                configs.extend(credentials::config_of_secret(&secret).map(|config| (config, Source::of(&secret))));
            }
            Ok(None) | Err(_) => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        let about = About { container: None, ..about };
        about.event(context, pod, Severity::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    let own = host_facts::docker_configs(&context.node.config.data_dir).into_iter();
    let plugins = context.node.images.plugins().configs(image).await;
    configs.extend(own.chain(plugins).map(|config| (config, Source::Node)));
    credentials::for_image(image, &configs)
}

/// The id of an image volume's image; `None` for other volumes.
pub(super) async fn of_volume(context: &PodContext, pod: &Pod, volume: &Volume) -> Result<Option<String>, StepError> {
    let Some(source) = &volume.image else { return Ok(None) };
    // Looked up and pulled like the image of a container.
    let container = Container {
        name: volume.name.clone(),
        image: source.reference.clone(),
        image_pull_policy: source.pull_policy.clone(),
        ..Container::default()
    };
    Ok(match image(context, pod, &container, About { container: None, ahead: false }).await? {
        ImageState::Present { id, .. } => Some(id),
        ImageState::Doubtful(_) | ImageState::Failed(_) | ImageState::FailedAhead(_) => None,
    })
}
