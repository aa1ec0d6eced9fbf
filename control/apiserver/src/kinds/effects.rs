//! Which component acts on the objects of each built-in kind, and what has no effect: the warnings of writes and
//! `docs/effects.md` follow from this one table, and a kind without a row fails a test. Pure.

use crate::apiserver::types::{Definition, Effect, Inert};

const API: Effect = Effect::Full("the API server");
const CONTROLLERS: Effect = Effect::Full("controllers");
const NODE: Effect = Effect::Full("the node");
const SCHEDULER: Effect = Effect::Full("the scheduler");
const OTHERS: Effect = Effect::Full("programs that are installed for it, as in any cluster");

/// The kind whose effect depends on the network of pods.
const POLICY: (&str, &str) = ("networking.k8s.io", "networkpolicies");

const DEVICES: Effect = inert("no devices are allocated: pods that claim them wait");
const CSI: Effect = inert("no volumes of CSI drivers are provisioned, attached or mounted");
const FAIRNESS: Effect = inert("it does not decide how requests are queued: they are limited as a whole, by class");

/// The effect of each built-in kind that is stored, by group and plural.
const EFFECTS: &[(&str, &str, Effect)] = &[
    ("", "configmaps", NODE),
    ("", "endpoints", CONTROLLERS),
    ("", "events", Effect::Full("who reads them")),
    ("", "limitranges", API),
    ("", "namespaces", CONTROLLERS),
    ("", "nodes", SCHEDULER),
    ("", "persistentvolumeclaims", CONTROLLERS),
    ("", "persistentvolumes", CONTROLLERS),
    ("", "pods", NODE),
    ("", "podtemplates", OTHERS),
    ("", "replicationcontrollers", CONTROLLERS),
    ("", "resourcequotas", API),
    ("", "secrets", NODE),
    ("", "serviceaccounts", API),
    ("", "services", Effect::Full("the proxy")),
    ("apiregistration.k8s.io", "apiservices", API),
    ("apps", "controllerrevisions", CONTROLLERS),
    ("apps", "daemonsets", CONTROLLERS),
    ("apps", "deployments", CONTROLLERS),
    ("apps", "replicasets", CONTROLLERS),
    ("apps", "statefulsets", CONTROLLERS),
    ("events.k8s.io", "events", Effect::Full("who reads them")),
    ("autoscaling", "horizontalpodautoscalers", CONTROLLERS),
    ("batch", "cronjobs", CONTROLLERS),
    ("batch", "jobs", CONTROLLERS),
    ("certificates.k8s.io", "certificatesigningrequests", CONTROLLERS),
    ("networking.k8s.io", "ingressclasses", OTHERS),
    ("networking.k8s.io", "ingresses", OTHERS),
    ("networking.k8s.io", "ipaddresses", API),
    (
        "networking.k8s.io",
        "networkpolicies",
        inert(
            "windlass does not enforce it without a node of its own with the built-in pod network: traffic flows as if it were not there, unless a network plugin that you have installed enforces it",
        ),
    ),
    ("networking.k8s.io", "servicecidrs", API),
    ("policy", "poddisruptionbudgets", API),
    ("rbac.authorization.k8s.io", "clusterrolebindings", API),
    ("rbac.authorization.k8s.io", "clusterroles", API),
    ("rbac.authorization.k8s.io", "rolebindings", API),
    ("rbac.authorization.k8s.io", "roles", API),
    ("storage.k8s.io", "csidrivers", CSI),
    ("storage.k8s.io", "csinodes", CSI),
    ("storage.k8s.io", "csistoragecapacities", CSI),
    ("storage.k8s.io", "storageclasses", CONTROLLERS),
    ("storage.k8s.io", "volumeattachments", CSI),
    ("storage.k8s.io", "volumeattributesclasses", inert("no volume is modified by it: that is a CSI driver's")),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", API),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", API),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", API),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", API),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", API),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", API),
    ("apiextensions.k8s.io", "customresourcedefinitions", API),
    ("scheduling.k8s.io", "priorityclasses", SCHEDULER),
    ("coordination.k8s.io", "leases", Effect::Full("who holds them")),
    ("node.k8s.io", "runtimeclasses", NODE),
    ("discovery.k8s.io", "endpointslices", Effect::Full("the proxy")),
    ("resource.k8s.io", "deviceclasses", DEVICES),
    ("resource.k8s.io", "resourceclaims", DEVICES),
    ("resource.k8s.io", "resourceclaimtemplates", DEVICES),
    ("resource.k8s.io", "resourceslices", DEVICES),
    ("flowcontrol.apiserver.k8s.io", "flowschemas", FAIRNESS),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", FAIRNESS),
];

/// No component acts on any object of the kind.
const fn inert(undone: &'static str) -> Effect {
    Effect::Stored(Inert { of: "", undone, holds: |_| true })
}

fn of(group: &str, plural: &str) -> Option<Effect> {
    EFFECTS.iter().find(|(of, name, _)| *of == group && *name == plural).map(|(.., effect)| *effect)
}

/// Notes who acts on each kind; on NetworkPolicies the node of this process does if it enforces them.
pub(super) fn declare(definitions: &mut [Definition], network_policies: bool) {
    for resource in definitions.iter_mut().map(|definition| &mut definition.resource) {
        if let Some(effect) = of(&resource.group, &resource.plural) {
            let is_enforced = network_policies && resource.group == POLICY.0 && resource.plural == POLICY.1;
            resource.effect = if is_enforced { NODE } else { effect };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, net::Ipv4Addr};

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        apiserver::{
            User,
            tests::{api, call, send, stored_versions, with_namespace},
        },
        control_plane::instance::{ApiConfig, Instance},
        kinds::{open_store, tests::recorded::sample},
        store::Memory,
    };

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/effects.md");

    #[test]
    fn every_stored_kind_has_its_row_and_every_row_its_kind() {
        let served: std::collections::BTreeSet<(String, String)> =
            stored_versions(&api()).iter().map(|v| (v.group.to_string(), v.plural.to_string())).collect();
        let rows = EFFECTS.iter().map(|(group, plural, _)| ((*group).to_owned(), (*plural).to_owned())).collect();
        assert_eq!(served, rows);
    }

    fn page() -> String {
        let mut text = "# What is accepted and has no effect\n\nWritten by `UPDATE_GOLDEN=1 cargo test --lib effects`; do not \
            edit. Each write of such an object is answered with a `Warning` that says the same; kubectl and Helm show it.\n\n\
            | kind | objects | what is not done |\n|---|---|---|\n".to_owned();
        for (group, plural, effect) in EFFECTS {
            let Effect::Stored(inert) = effect else { continue };
            let objects = if inert.of.is_empty() { "all" } else { inert.of };
            let name = if group.is_empty() { (*plural).to_owned() } else { format!("{plural}.{group}") };
            let _ = writeln!(text, "| `{name}` | {objects} | {} |", inert.undone);
        }
        text.push_str("\nAll other kinds have their effect:\n\n| kind | who acts on it |\n|---|---|\n");
        for (group, plural, effect) in EFFECTS {
            let Effect::Full(who) = effect else { continue };
            let name = if group.is_empty() { (*plural).to_owned() } else { format!("{plural}.{group}") };
            let _ = writeln!(text, "| `{name}` | {who} |");
        }
        text
    }

    #[test]
    fn the_page_says_what_the_table_says() {
        let now = page();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(PAGE, &now).unwrap();
        }
        let before = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert!(before == now, "docs/effects.md is not as the table is; UPDATE_GOLDEN=1 writes it");
    }

    /// By create, update, patch and apply; not of what has an effect.
    #[tokio::test]
    async fn every_write_of_what_has_no_effect_is_warned_of() {
        let api = with_namespace().await;
        let user = User::internal("t");
        let path = "/apis/networking.k8s.io/v1/namespaces/n/networkpolicies";
        let one = format!("{path}/deny");
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
        let applied = format!("{one}?fieldManager=f&force=true");
        for (method, path, kind, body) in [
            ("POST", path, "application/json", object.clone()),
            ("PUT", &one, "application/json", object.clone()),
            ("PATCH", &one, "application/merge-patch+json", json!({"metadata": {"labels": {"a": "b"}}})),
            ("PATCH", &applied, "application/apply-patch+yaml", object),
        ] {
            let reply = send(&api, &user, method, path, kind, "*/*", &body.to_string()).await;
            assert!(reply.code < 300, "{}", reply.body);
            let warnings = reply.warnings.join("\n");
            assert!(
                warnings.contains(r#"NetworkPolicy \"deny\" is stored, but windlass does not enforce it"#),
                "{warnings}"
            );
        }
        // Where the node enforces it nobody is warned.
        let store = open_store(Box::new(Memory::default())).unwrap();
        let config =
            ApiConfig { network_policies: true, ..ApiConfig::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30009) };
        let enforcing = Instance::new(&store, &config, None, None);
        let namespace = json!({"metadata": {"name": "n"}});
        assert_eq!(call(&enforcing, "POST", "/api/v1/namespaces", namespace).await.code, 201);
        let written = json!({"metadata": {"name": "deny"}, "spec": {"podSelector": {}}});
        let made = call(&enforcing, "POST", path, written).await;
        assert_eq!((made.code, made.warnings), (201, Vec::new()));
        let made = call(&api, "POST", "/api/v1/namespaces/n/configmaps", json!({"metadata": {"name": "m"}})).await;
        assert_eq!(made.warnings, [""; 0]);
    }

    #[test]
    fn only_objects_that_ask_for_what_is_not_done_are_warned_of() {
        let warns = |group: &str, plural: &str, object: &Value| match of(group, plural) {
            Some(Effect::Stored(inert)) => (inert.holds)(object),
            _ => false,
        };
        assert!(!warns("apiregistration.k8s.io", "apiservices", &json!({"spec": {"service": {"name": "a"}}})));
        let class = sample("resource.k8s.io/v1", "DeviceClass");
        assert!(warns("resource.k8s.io", "deviceclasses", &class));
    }
}
