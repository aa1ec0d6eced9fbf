//! What an administrator applies: the definition, the configurations of the webhooks, and the operator's rights.

use serde_json::{Value, json};

use super::{GROUP, INJECT, NAMESPACE};

/// The annotation by which a cache is not checked.
pub(super) const UNCHECKED: &str = "operators.example.com/unchecked";
/// The label of namespaces in which nothing is.
pub(super) const DISABLED: &str = "operators.example.com/disable-validation";

fn asking_for_injection(name: &str) -> Value {
    json!({"name": name, "annotations": {INJECT: "true"}})
}

/// What both versions have in common; the older one has no rule.
fn version(name: &str, is_stored: bool, spec: &Value) -> Value {
    let (replicas, memory) =
        if name == "v1" { (".spec.replicas", ".spec.memory.limit") } else { (".spec.size", ".spec.memory") };
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"},
        "observedGeneration": {"type": "integer", "format": "int64"}}});
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    json!({"name": name, "served": true, "storage": is_stored,
        "subresources": {"status": {}, "scale": {"specReplicasPath": replicas,
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
        "selectableFields": [{"jsonPath": ".spec.tier"}, {"jsonPath": memory}],
        "additionalPrinterColumns": [column("Wanted", "integer", replicas), column("Replicas", "integer", ".status.replicas"),
            column("Tier", "string", ".spec.tier")],
        "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"],
            "properties": {"spec": spec, "status": status}}}})
}

fn tier() -> Value {
    json!({"type": "string", "enum": ["standard", "large"]})
}

fn old(is_stored: bool) -> Value {
    let properties = json!({"size": {"type": "integer"}, "memory": {"type": "string"}, "tier": tier()});
    version("v1alpha1", is_stored, &json!({"type": "object", "properties": properties}))
}

fn new(is_stored: bool) -> Value {
    let memory = json!({"type": "object", "properties": {"limit": {"type": "string"}}});
    let rules = json!([
        {"rule": "self.replicas <= 3 || (has(self.tier) && self.tier == 'large')",
            "message": "more than 3 replicas need the large tier", "fieldPath": ".replicas"},
        {"rule": "!has(oldSelf.tier) || (has(self.tier) && self.tier == oldSelf.tier)", "message": "the tier cannot be changed"}]);
    let properties =
        json!({"replicas": {"type": "integer", "minimum": 0, "maximum": 100}, "memory": memory, "tier": tier()});
    let spec = json!({"type": "object", "required": ["replicas"], "properties": properties,
        "x-kubernetes-validations": rules});
    version("v1", is_stored, &spec)
}

fn definition_of(versions: &[Value], conversion: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": asking_for_injection(&format!("caches.{GROUP}")),
        "spec": {"group": GROUP, "scope": "Namespaced", "versions": versions, "conversion": conversion,
            "names": {"plural": "caches", "singular": "cache", "kind": "Cache", "listKind": "CacheList"}}})
}

fn by_webhook(url: &str) -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("{url}/convert")}}})
}

/// The definition with both versions, without an authority of the webhook.
pub(super) fn definition(url: &str, stored: &str) -> Value {
    definition_of(&[old(stored == "v1alpha1"), new(stored == "v1")], &by_webhook(url))
}

/// The definition as it is when nothing of the older version is left.
pub(super) fn final_definition() -> Value {
    definition_of(&[new(true)], &json!({"strategy": "None"}))
}

fn rule(operations: &[&str], group: &str, version: &str, resource: &str) -> Value {
    json!({"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource],
        "scope": "Namespaced"})
}

/// The two configurations, without an authority: cert-manager's rules (`*/*` of its group, in one version of it), and what
/// guards the operator's children.
pub(super) fn webhooks(url: &str) -> Value {
    let written = || rule(&["CREATE", "UPDATE"], GROUP, "v1", "*/*");
    let hook = |name: &str, rules: &[Value], more: Value| {
        let mut hook = json!({"name": format!("{name}.{GROUP}"), "rules": rules, "failurePolicy": "Fail",
            "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10, "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("{url}/{name}")}});
        let fields = more.as_object().cloned().unwrap_or_default();
        fields.into_iter().for_each(|(field, value)| hook[field] = value);
        hook
    };
    let unless = |name: &str, expression: &str| json!([{"name": name, "expression": expression}]);
    let unchecked = format!(
        "object == null || !has(object.metadata.annotations) || !('{UNCHECKED}' in object.metadata.annotations)"
    );
    let not_disabled = json!({"matchExpressions": [{"key": DISABLED, "operator": "NotIn", "values": ["true"]}]});
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let mutating = [hook("label", &[written()], again), hook("default", &[written()], json!({}))];
    let deletion = rule(&["DELETE"], GROUP, "*", "caches");
    let validating = [
        hook(
            "check",
            &[written(), deletion],
            json!({"namespaceSelector": not_disabled, "matchConditions": unless("unless-unchecked", &unchecked)}),
        ),
        hook(
            "guard",
            &[rule(&["UPDATE"], "", "v1", "configmaps")],
            json!({"sideEffects": "NoneOnDryRun",
                "objectSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "cache-operator"}},
                "matchConditions": unless("unless-system", "!request.userInfo.username.startsWith('system:')")}),
        ),
    ];
    let configuration = |kind: &str, hooks: &[Value]| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": asking_for_injection("cache-operator"), "webhooks": hooks})
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [
        configuration("MutatingWebhookConfiguration", &mutating), configuration("ValidatingWebhookConfiguration", &validating)]})
}

/// The operator's namespace and rights.
pub(super) fn rights() -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let all = ["get", "list", "watch", "create", "update", "patch", "delete"];
    let rules = json!([
        rule(GROUP, &["caches"], &["get", "list", "watch", "patch"]),
        rule(GROUP, &["caches/status", "caches/finalizers"], &["update", "patch"]),
        rule("", &["configmaps"], &all),
        rule("apps", &["deployments"], &all),
        rule("events.k8s.io", &["events"], &["create", "patch", "update"]),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
        rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &["get", "list", "update"]
        ),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get", "list", "update"]),
    ]);
    let subject = json!({"kind": "ServiceAccount", "name": "operator", "namespace": NAMESPACE});
    let role = json!({"kind": "ClusterRole", "name": "cache-operator", "apiGroup": "rbac.authorization.k8s.io"});
    let object =
        |version: &str, kind: &str, metadata: Value| json!({"apiVersion": version, "kind": kind, "metadata": metadata});
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut cluster_role = object(rbac, "ClusterRole", json!({"name": "cache-operator"}));
    cluster_role["rules"] = rules;
    let mut binding = object(rbac, "ClusterRoleBinding", json!({"name": "cache-operator"}));
    (binding["subjects"], binding["roleRef"]) = (json!([subject]), role);
    json!({"apiVersion": "v1", "kind": "List", "items": [
        object("v1", "Namespace", json!({"name": NAMESPACE})),
        object("v1", "ServiceAccount", json!({"name": "operator", "namespace": NAMESPACE})),
        object("v1", "Namespace", json!({"name": "unchecked", "labels": {DISABLED: "true"}})),
        cluster_role,
        binding,
    ]})
}
