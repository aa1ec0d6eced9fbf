//! The end of a pod: what it has left on the node is removed, and the pod from the API.

use std::{sync::Arc, time::Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Preconditions};

use super::{
    context::PodContext,
    host_files,
    outcome::{Outcome, StepError},
};
use crate::{
    pods::lifecycle::{reasons, spec},
    volumes::call_pool::Call,
};

/// Removes network, volumes, directory, logs and cgroups of a pod.
pub(crate) async fn clean_up(context: Arc<PodContext>, uid: String) -> Outcome {
    let failed = |message: String| StepError::new(reasons::FAILED_KILL_POD, message);
    let result = async {
        context.node.network.detach(&uid).await.map_err(|e| failed(e.to_string()))?;
        context.volumes.teardown(&uid).await.map_err(|e| failed(e.to_string()))?;
        let dir = context.pod_dir(&uid);
        let remove = move |_: &Call| host_files::remove_pod_dir(&dir);
        context.volumes.on_thread(&format!("clean-up of {uid}"), "pod directory", remove).await.map_err(failed)?;
        host_files::remove_log_dirs(&context.node.config.pod_logs_dir, &uid);
        let began = Instant::now();
        context.node.cgroups.remove_pod(&uid);
        context.node.metrics.cgroup_seconds.observe_duration(["destroy"], began.elapsed());
        Ok(())
    };
    Outcome::CleanedUp(result.await)
}

/// What NodeRestriction says of a pod that is bound to another node.
const FORBIDDEN_OTHER_NODE: &str = "can only delete pods with spec.nodeName set to itself";

/// Deletes a terminated pod from the API, with a grace period of 0.
pub(crate) async fn delete_from_api(context: Arc<PodContext>, pod: Arc<Pod>) -> Outcome {
    let api: Api<Pod> = Api::namespaced(context.node.client.clone(), spec::namespace(&pod));
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    let result = match api.delete(spec::name(&pod), &params).await {
        Ok(_) => Ok(()),
        // Already deleted, or replaced by a new pod of the same name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        // Replaced by a new pod of the same name on another node: a pod's node never changes, so ours was deleted.
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(FORBIDDEN_OTHER_NODE) => Ok(()),
        Err(error) => {
            Err(StepError::new(reasons::FAILED_KILL_POD, format!("failed to delete the pod from the API: {error}")))
        }
    };
    Outcome::DeletedFromApi(result)
}
