//! PodSecurity: what the pods of a namespace may do, by the levels that its labels name.

mod checks;
mod configuration;
mod existing;
mod policy;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, FieldError, Operation, aggregate},
    store::{Key, Store},
};
use checks::{Pod, describe, violations};
pub(crate) use configuration::Configuration;
use policy::Policy;

/// Subresources of pods that cannot change what a check reads.
const IGNORED_SUBRESOURCES: [&str; 8] =
    ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Keys of audit annotations.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce-policy";
const AUDITED: &str = "pod-security.kubernetes.io/audit-violations";
const EXEMPT: &str = "pod-security.kubernetes.io/exempt";
const ERROR: &str = "pod-security.kubernetes.io/error";

/// Refuses and warns.
#[derive(Debug)]
pub(super) struct PodSecurity {
    pub(super) store: Store,
    pub(super) configuration: Configuration,
}

#[async_trait]
impl AdmissionPlugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let target = attributes.target;
        if attributes.is_core("namespaces") && target.subresource.is_none() {
            return self.validate_namespace(attributes, object);
        }
        let is_pod = attributes.is_core("pods");
        let subresource = target.subresource.as_deref();
        if subresource.is_some_and(|name| !is_pod || IGNORED_SUBRESOURCES.contains(&name)) {
            return Ok(());
        }
        let pod = if is_pod {
            Some(pod_of(object))
        } else {
            template_of(&target.version.group, &target.version.plural, object)
        };
        let Some(pod) = pod else { return Ok(()) };
        let key = Key { namespace: String::new(), name: target.namespace.clone().unwrap_or_default() };
        let exempt = |by: &str| attributes.audit.annotate(EXEMPT, by);
        if self.configuration.exempts_namespace(&key.name) {
            exempt("namespace");
            return Ok(());
        }
        if self.configuration.usernames.contains(&attributes.user.name) {
            exempt("user");
            return Ok(());
        }
        let update = attributes.old.filter(|_| is_pod && attributes.operation == Operation::Update);
        if update.is_some_and(|old| !is_significant_update(object, old)) {
            return Ok(());
        }
        if self.configuration.exempts_runtime_class(pod.spec) {
            exempt("runtimeClass");
            return Ok(());
        }
        // Without a namespace nothing is stored.
        let Some(namespace) = self.store.get(self.store.resource("namespaces"), &key) else { return Ok(()) };
        let policy = self.policy(&namespace.value()["metadata"]["labels"]);
        evaluate(policy, attributes, object, pod, is_pod)
    }
}

/// Refuses a pod, and warns about pods and templates of pods.
fn evaluate(
    (policy, errors): (Policy, Vec<FieldError>),
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    pod: Pod<'_>,
    enforce: bool,
) -> Result<(), ApiError> {
    let note = |key: &str, value: String| attributes.audit.annotate(key, value);
    match aggregate(errors.iter().map(ToString::to_string)) {
        Some(all) => note(ERROR, format!("Failed to parse policy: {all}")),
        None if policy.is_privileged() => {
            note(ENFORCED, policy.enforce.to_string());
            return Ok(());
        }
        None => {}
    }
    if enforce {
        note(ENFORCED, policy.enforce.to_string());
    }
    let audited = violations(policy.audit, pod);
    if !audited.is_empty() {
        note(AUDITED, format!("would violate PodSecurity \"{}\": {}", policy.audit, describe(&audited)));
    }
    if enforce {
        let found = violations(policy.enforce, pod);
        if !found.is_empty() {
            let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, describe(&found));
            return Err(attributes.forbidden(object, &why));
        }
    }
    let found = violations(policy.warn, pod);
    if !found.is_empty() {
        attributes.warnings.add(format!("would violate PodSecurity \"{}\": {}", policy.warn, describe(&found)));
    }
    Ok(())
}

impl PodSecurity {
    /// What labels demand, and what is wrong with them.
    fn policy(&self, labels: &Value) -> (Policy, Vec<FieldError>) {
        Policy::of_labels(labels, self.configuration.defaults)
    }

    /// Refuses labels that cannot be read, and warns about pods that would be refused now.
    fn validate_namespace(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let version = &attributes.target.version;
        let name = attributes.name(object);
        let labels = &object["metadata"]["labels"];
        let (policy, errors) = self.policy(labels);
        let before = attributes.old.map(|old| self.policy(&old["metadata"]["labels"]));
        if !errors.is_empty() && before.as_ref().is_none_or(|(_, before)| *before != errors) {
            return Err(ApiError::invalid(version, name, &errors));
        }
        let is_exempt = self.configuration.exempts_namespace(name);
        let ignored = || {
            let policy = policy::ignored(&policy, labels);
            format!("namespace {name:?} is exempt from Pod Security, and the policy ({policy}) will be ignored")
        };
        let Some((before, _)) = before else {
            if is_exempt && !policy.is_privileged() && policy != self.configuration.defaults {
                attributes.warnings.add(ignored());
            }
            return Ok(());
        };
        if !policy.enforce.tightens(before.enforce) {
            return Ok(());
        }
        if is_exempt {
            attributes.warnings.add(ignored());
            return Ok(());
        }
        tracing::debug!(namespace = name, from = %before.enforce, to = %policy.enforce, "pod security is tightened");
        let (pods, _) = self.store.list(self.store.resource("pods"), Some(name));
        let pods = pods.iter().map(|pod| pod.value());
        let pods: Vec<Value> = pods.filter(|pod| !self.configuration.exempts_runtime_class(&pod["spec"])).collect();
        existing::warnings(name, policy.enforce, &pods)
            .into_iter()
            .for_each(|warning| attributes.warnings.add(warning));
        Ok(())
    }
}

fn pod_of(object: &Value) -> Pod<'_> {
    Pod { metadata: &object["metadata"], spec: &object["spec"] }
}

/// The template of pods in an object of a resource that has one. Pure.
fn template_of<'a>(group: &str, plural: &str, object: &'a Value) -> Option<Pod<'a>> {
    let template = match (group, plural) {
        ("", "podtemplates") => &object["template"],
        ("", "replicationcontrollers")
        | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &object["spec"]["template"],
        ("batch", "cronjobs") => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    template.is_object().then(|| pod_of(template))
}

/// Whether an update of a pod changes what checks read: of the little that an update may change these are images, the
/// annotations with seccomp profiles, and new containers. Pure.
fn is_significant_update(new: &Value, old: &Value) -> bool {
    fn list<'a>(of: &'a Value, field: &str) -> &'a [Value] {
        of["spec"][field].as_array().map_or(&[], Vec::as_slice)
    }
    let changes = |a: &Value, b: &Value| {
        let key = format!("container.seccomp.security.alpha.kubernetes.io/{}", a["name"].as_str().unwrap_or(""));
        let [profile, before] = [new, old].map(|of| of["metadata"]["annotations"].get(&key));
        a["image"] != b["image"] || profile != before
    };
    for field in ["containers", "initContainers"] {
        let (now, before) = (list(new, field), list(old, field));
        if now.len() != before.len() || now.iter().zip(before).any(|(a, b)| changes(a, b)) {
            return true;
        }
    }
    let before = list(old, "ephemeralContainers");
    list(new, "ephemeralContainers")
        .iter()
        .any(|container| before.iter().find(|b| b["name"] == container["name"]).is_none_or(|b| changes(container, b)))
}
