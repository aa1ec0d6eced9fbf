//! Which Secrets the pods of a ServiceAccount may use: those that it names, if its annotation says so. Pure.

use serde_json::Value;

use crate::kinds::core::service_account::ENFORCE_MOUNTABLE_SECRETS;

/// The words that Go reads as true.
const TRUE: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];

/// Whether an account limits its pods.
fn is_limiting(account: &Value) -> bool {
    let annotation = account["metadata"]["annotations"][ENFORCE_MOUNTABLE_SECRETS].as_str();
    annotation.is_some_and(|text| TRUE.contains(&text))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Whether one of the account's references is to a Secret.
fn names(references: &Value, secret: &str) -> bool {
    items(references).any(|reference| reference["name"] == secret)
}

/// Why a new pod may not run under an account.
pub(super) fn of_pod(pod: &Value, account: &Value) -> Option<String> {
    if !is_limiting(account) {
        return None;
    }
    let spec = &pod["spec"];
    let volumes = items(&spec["volumes"]).filter_map(|volume| volume["secret"]["secretName"].as_str());
    let of_volumes = || {
        let secret = volumes.into_iter().find(|secret| !names(&account["secrets"], secret))?;
        Some(refusal(&format!("volume with secret.secretName=\"{secret}\""), account, "secret"))
    };
    let of_pulls = || {
        let pulls = items(&spec["imagePullSecrets"]).map(|secret| secret["name"].as_str().unwrap_or_default());
        let (at, secret) = pulls.enumerate().find(|(_, secret)| !names(&account["imagePullSecrets"], secret))?;
        Some(refusal(&format!("imagePullSecrets[{at}].name=\"{secret}\""), account, "imagePullSecret"))
    };
    of_volumes()
        .or_else(|| of_containers(&spec["initContainers"], "init container", account))
        .or_else(|| of_containers(&spec["containers"], "container", account))
        .or_else(of_pulls)
}

/// Why ephemeral containers may not be added to a pod of an account.
pub(super) fn of_ephemeral_containers(pod: &Value, account: &Value) -> Option<String> {
    let containers = &pod["spec"]["ephemeralContainers"];
    if is_limiting(account) { of_containers(containers, "ephemeral container", account) } else { None }
}

fn of_containers(containers: &Value, what: &str, account: &Value) -> Option<String> {
    items(containers).find_map(|container| {
        let name = container["name"].as_str().unwrap_or_default();
        let variable = items(&container["env"]).find_map(|variable| {
            let secret = variable["valueFrom"]["secretKeyRef"]["name"].as_str()?;
            let what = || format!("envVar {} referencing", variable["name"].as_str().unwrap_or_default());
            (!names(&account["secrets"], secret)).then(|| (what(), secret))
        });
        let source = || {
            let secrets = items(&container["envFrom"]).filter_map(|source| source["secretRef"]["name"].as_str());
            secrets
                .into_iter()
                .find(|secret| !names(&account["secrets"], secret))
                .map(|secret| ("envFrom referencing".to_owned(), secret))
        };
        let (how, secret) = variable.or_else(source)?;
        Some(refusal(&format!("{what} {name} with {how} secret.secretName=\"{secret}\""), account, "secret"))
    })
}

fn refusal(what: &str, account: &Value, kind: &str) -> String {
    let name = account["metadata"]["name"].as_str().unwrap_or_default();
    format!("{what} is not allowed because service account {name} does not reference that {kind}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account(enforces: &str) -> Value {
        json!({"metadata": {"name": "limited", "annotations": {ENFORCE_MOUNTABLE_SECRETS: enforces}},
            "secrets": [{"name": "good"}], "imagePullSecrets": [{"name": "pull"}]})
    }

    #[test]
    fn secrets_are_those_that_the_account_names() {
        let variable = |secret: &str| json!([{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]}]);
        let source = |secret: &str| json!([{"name": "c", "envFrom": [{"secretRef": {"name": secret}}]}]);
        let secret = "is not allowed because service account limited does not reference that secret";
        let pull = "is not allowed because service account limited does not reference that imagePullSecret";
        let volume = |secret: &str| json!([{"name": "v", "secret": {"secretName": secret}}]);
        let rows = [
            (json!({"volumes": volume("good")}), None),
            (json!({"volumes": volume("bad")}), Some(format!("volume with secret.secretName=\"bad\" {secret}"))),
            (json!({"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "bad"}}]}}]}), None),
            (json!({"containers": variable("good")}), None),
            (
                json!({"containers": variable("bad")}),
                Some(format!("container c with envVar E referencing secret.secretName=\"bad\" {secret}")),
            ),
            (
                json!({"containers": source("bad")}),
                Some(format!("container c with envFrom referencing secret.secretName=\"bad\" {secret}")),
            ),
            (
                json!({"initContainers": source("bad"), "containers": variable("bad")}),
                Some(format!("init container c with envFrom referencing secret.secretName=\"bad\" {secret}")),
            ),
            (json!({"imagePullSecrets": [{"name": "pull"}]}), None),
            (
                json!({"imagePullSecrets": [{"name": "pull"}, {"name": "good"}]}),
                Some(format!("imagePullSecrets[1].name=\"good\" {pull}")),
            ),
        ];
        for (spec, wanted) in rows {
            let pod = json!({"spec": spec});
            assert_eq!(of_pod(&pod, &account("true")), wanted, "{spec}");
            assert_eq!(of_pod(&pod, &account("false")), None, "{spec}");
        }
        let debugged = json!({"spec": {"ephemeralContainers": variable("bad"), "volumes": volume("bad")}});
        let wanted = format!("ephemeral container c with envVar E referencing secret.secretName=\"bad\" {secret}");
        assert_eq!(of_ephemeral_containers(&debugged, &account("1")), Some(wanted));
        assert_eq!(of_ephemeral_containers(&debugged, &account("yes")), None, "a word that Go does not read");
    }
}
