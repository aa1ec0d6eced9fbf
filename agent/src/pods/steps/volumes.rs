//! The volumes of a pod: each set up and refreshed on its own, all torn down together.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio_util::sync::CancellationToken;

use super::{
    context::PodContext,
    images,
    outcome::{Outcome, StepError},
};
use crate::{
    pods::lifecycle::reasons,
    volumes::{VolumeImage, object_watch::ObjectReader},
};

/// Sets up one volume, or rewrites its files. The pull of an image for it is cancelled when the pod terminates; setting
/// it up is not, since tearing it down must find everything that was mounted.
pub(crate) async fn prepare_volume(
    context: Arc<PodContext>,
    pod: Arc<Pod>,
    volume: Volume,
    contents: ObjectReader,
    cancelled: CancellationToken,
) -> Outcome {
    let image = tokio::select! {
        biased;
        image = images::of_volume(&context, &pod, &volume) => image,
        () = cancelled.cancelled() => return Outcome::Cancelled,
    };
    let mounted_by_engine = context.node.engine.mounts_images();
    let result = match image {
        Ok(id) => {
            let image = id.map(|id| VolumeImage { id, mounted_by_engine });
            let prepared = context.volumes.prepare(&pod, &volume, image, &contents).await;
            prepared.map_err(|e| (StepError::new(reasons::FAILED_MOUNT, e.to_string()), e.pending))
        }
        Err(error) => Err((error, false)),
    };
    Outcome::VolumePrepared { volume: volume.name, result }
}

/// Tears down the volumes of a terminal pod that stays in the API.
pub(crate) async fn release_volumes(context: Arc<PodContext>, uid: String) -> Outcome {
    let result = context.volumes.teardown(&uid).await;
    Outcome::VolumesReleased(result.map_err(|e| StepError::new(reasons::FAILED_KILL_POD, e.to_string())))
}
