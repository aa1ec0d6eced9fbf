//! The volumes of a pod: set up, refreshed, torn down.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;

use super::{
    context::PodContext,
    images,
    outcome::{Outcome, StepError},
    sandbox::write_pod_files,
};
use crate::{
    pods::lifecycle::reasons,
    volumes::{VolumeImages, object_watch::ObjectReader},
};

/// Pulls of images for volumes are cancelled when the pod terminates; setting volumes up is not, since tearing them
/// down must find everything that was mounted.
pub(crate) async fn prepare_volumes(
    context: Arc<PodContext>,
    pod: Arc<Pod>,
    contents: ObjectReader,
    cancelled: CancellationToken,
) -> Outcome {
    if let Err(why) = write_pod_files(&context, &pod, &[]) {
        return Outcome::VolumesPrepared(Err(StepError::new(reasons::FAILED_MOUNT, why)));
    }
    let images = tokio::select! {
        biased;
        images = images::of_volumes(&context, &pod) => images,
        () = cancelled.cancelled() => return Outcome::Cancelled,
    };
    let result = async {
        let images = VolumeImages { ids: images?, mounted_by_engine: context.engine_health.borrow().mounts_images() };
        let prepared = context.volumes.prepare(&pod, &images, &contents).await;
        prepared.map_err(|e| StepError::new(reasons::FAILED_MOUNT, e.to_string()))
    };
    Outcome::VolumesPrepared(result.await)
}

/// Rewrites the files of volumes whose sources changed.
pub(crate) async fn refresh_volumes(context: Arc<PodContext>, pod: Arc<Pod>, contents: ObjectReader) -> Outcome {
    let result = context.volumes.refresh(&pod, &contents).await;
    Outcome::VolumesRefreshed(result.map_err(|e| StepError::new(reasons::FAILED_MOUNT, e.to_string())))
}

/// Tears down the volumes of a terminal pod that stays in the API.
pub(crate) async fn release_volumes(context: Arc<PodContext>, uid: String) -> Outcome {
    let result = context.volumes.teardown(&uid).await;
    Outcome::VolumesReleased(result.map_err(|e| StepError::new(reasons::FAILED_KILL_POD, e.to_string())))
}
