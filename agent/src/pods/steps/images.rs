//! Images of containers: looked up, or pulled with what the pod and the node may show.

use windlass_kit::objects::image::Reference;

use super::*;
use crate::{
    engine::images::is_out_of_order,
    images::{
        self,
        credentials::{self, Credentials, Source},
    },
    metrics::size_word,
};

pub(crate) async fn ensure_image(shared: Arc<Shared>, pod: Arc<Pod>, container: Container) -> Outcome {
    let name = container.name.clone();
    let result = image(&shared, &pod, &container, Some(&name)).await;
    Outcome::Image { container: name, result }
}

/// `about` is the container that events are about; of a volume's image they are about the pod.
async fn image(shared: &Shared, pod: &Pod, container: &Container, about: Option<&str>) -> Result<ImageState, Refusal> {
    let image = spec::image_of(container);
    let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    let lookup = |e: &EngineError| Refusal::of("ImageInspectError", e);
    let event = |severity, reason: &str, message: String| {
        shared.event(pod, about, severity, reason, message);
    };
    let Some(reference) = Reference::parse(image) else {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
        );
        event(Severity::Warning, "InspectFailed", message.clone());
        return Err(Refusal::new("InvalidImageName", message));
    };
    let records = shared.images.records();
    let mut shown = None;
    if policy != "Always" {
        let found = shared.engine.image(image).await.map_err(|e| lookup(&e))?;
        let usable = match &found {
            None => false,
            Some(found) if records.is_for_all(&reference, found).await => true,
            // Somebody has pulled it with a secret: whoever asks now must have one, too.
            Some(found) => {
                let shown = shown.insert(credentials(shared, pod, &reference).await);
                !records.must_pull(&reference, found, shown).await
            }
        };
        if let Some(found) = found.filter(|_| usable) {
            event(Severity::Normal, "Pulled", format!("Container image {image:?} already present on machine"));
            return Ok(ImageState::Present { id: found.id, shown: found.shown, user: found.user });
        }
        if policy == "Never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            event(Severity::Warning, "ErrImageNeverPull", message.clone());
            return Err(Refusal::new("ErrImageNeverPull", message));
        }
    }
    event(Severity::Normal, "Pulling", format!("Pulling image {image:?}"));
    let shown = match shown {
        Some(shown) => shown,
        None => credentials(shared, pod, &reference).await,
    };
    if let Err(error) = records.begin(&reference).await {
        let message = format!("Failed to record image pull intent for container image {image:?}: {error}");
        event(Severity::Warning, "Failed", message.clone());
        return Err(Refusal::new("ErrImagePull", message));
    }
    let started = Instant::now();
    let pulled = async {
        let took =
            attended(shared.images.pulls().pull(image, shown.iter().map(Credentials::for_docker).collect()), || {
                let progress = shared.images.progress();
                let words = progress.borrow().values().find(|p| p.image == image).map(images::Progress::words);
                event(Severity::Normal, "Pulling", format!("Pulling image {image:?}: {}", words.unwrap_or_default()));
            });
        let pulled = took.await?;
        Ok::<_, EngineError>(shared.engine.image(image).await?.map(|found| (found, pulled)))
    };
    let pulled = pulled.await;
    match &pulled {
        Ok(Some((found, pulled))) => {
            records.pulled(&reference, &found.id, pulled.with.and_then(|index| shown.get(index))).await;
        }
        Ok(None) | Err(_) => records.failed(&reference).await,
    }
    match pulled {
        Ok(Some((found, images::Pulled { took, .. }))) => {
            shared.metrics.pulls.took([size_word(found.size)], took);
            let (took, waited) = (took.as_secs_f64(), started.elapsed().as_secs_f64());
            event(
                Severity::Normal,
                "Pulled",
                format!(
                    "Successfully pulled image {image:?} in {took:.3}s ({waited:.3}s including waiting). Image size: {} bytes.",
                    found.size
                ),
            );
            Ok(ImageState::Present { id: found.id, shown: found.shown, user: found.user })
        }
        Ok(None) => {
            Err(Refusal::new("ErrImagePull", format!("image {image:?} was pulled but is not in Docker's store")))
        }
        Err(error) => {
            let reason = if is_out_of_order(&error.reason) { "RegistryUnavailable" } else { "ErrImagePull" };
            if !error.is_unreachable() {
                event(Severity::Warning, "Failed", format!("Failed to pull image {image:?}: {}", error.reason));
                event(Severity::Warning, "Failed", format!("Error: {reason}"));
            }
            Err(Refusal { message: error.reason.clone(), ..Refusal::of(reason, &error) })
        }
    }
}

/// A long pull says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// Waits for `work`, and calls `say` from time to time.
async fn attended<T>(work: impl Future<Output = T>, say: impl Fn()) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(SAY_EVERY, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) => say(),
        }
    }
}

/// What registries may be shown for an image: the pod's pull secrets, then what the node's own files and plugins have.
async fn credentials(shared: &Shared, pod: &Pod, image: &Reference) -> Vec<Credentials> {
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), spec::namespace(pod));
    let names = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()).map(|r| r.name.as_str());
    let (mut configs, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        match past_lag(|| api.get_opt(name)).await {
            Ok(Some(secret)) => {
                configs.extend(credentials::of_secret(&secret).map(|config| (config, Source::of(&secret))));
            }
            Ok(None) | Err(_) => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        shared.event(pod, None, Severity::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    let own = crate::pods::host::docker_configs(&shared.config.data_dir).into_iter();
    let given = shared.images.plugins().configs(image).await;
    configs.extend(own.chain(given).map(|config| (config, Source::Node)));
    credentials::for_image(image, &configs)
}

/// The images that volumes are made of, by the volumes' names.
pub(super) async fn of_volumes(shared: &Shared, pod: &Pod) -> Result<BTreeMap<String, String>, Refusal> {
    let mut ids = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some(source) = &volume.image else { continue };
        // Looked up and pulled as a container's is.
        let asked = Container {
            name: volume.name.clone(),
            image: source.reference.clone(),
            image_pull_policy: source.pull_policy.clone(),
            ..Container::default()
        };
        if let ImageState::Present { id, .. } = image(shared, pod, &asked, None).await? {
            ids.insert(volume.name.clone(), id);
        }
    }
    Ok(ids)
}
