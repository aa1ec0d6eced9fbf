//! The pods of a Job. Pure.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec},
};
use kube::ResourceExt;

use super::{manage::NewPod, pod::TRACKING};
use crate::{pod_control::pod_of, runtime::PodAnnotation};

/// The variable with the pod's index.
const ENV: &str = "JOB_COMPLETION_INDEX";
/// The longest prefix of a generated name.
const MAX_PREFIX: usize = 58;

/// A pod to create; `None` for a Job without a specification.
pub(crate) fn pod_for(job: &Job, new: &NewPod) -> Option<Pod> {
    let mut pod = pod_of(&job.spec.as_ref()?.template, job);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == TRACKING) {
        finalizers.push(TRACKING.to_owned());
    }
    let Some(index) = new.index else { return Some(pod) };
    pod.metadata.generate_name = Some(prefix(&job.name_any(), index));
    pod.metadata
        .labels
        .get_or_insert_default()
        .insert(PodAnnotation::CompletionIndex.name().to_owned(), index.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(PodAnnotation::CompletionIndex.name().to_owned(), index.to_string());
    if let Some((counted, ignored)) = new.failures {
        annotations.insert(PodAnnotation::IndexFailures.name().to_owned(), counted.to_string());
        if ignored > 0 {
            annotations.insert(PodAnnotation::IndexIgnoredFailures.name().to_owned(), ignored.to_string());
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{}-{index}", job.name_any()));
        add_index(spec);
    }
    Some(pod)
}

/// `<job>-<index>-`, with a name that is cut where five more characters would not fit.
fn prefix(job: &str, index: i32) -> String {
    let end = format!("-{index}-");
    // Names are ASCII.
    let name = job.get(..MAX_PREFIX.saturating_sub(end.len())).unwrap_or(job);
    format!("{name}{end}")
}

fn add_index(spec: &mut PodSpec) {
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if env.iter().any(|variable| variable.name == ENV) {
            continue;
        }
        let field = ObjectFieldSelector {
            api_version: None,
            field_path: format!("metadata.labels['{}']", PodAnnotation::CompletionIndex.name()),
        };
        env.push(EnvVar {
            name: ENV.to_owned(),
            value: None,
            value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        });
    }
}
