//! Who may write parts of a claim of devices beyond the right to claims (upstream: `AuthorizedForAdmin`, `AuthorizedForBinding`
//! and their relatives in the strategies of the two resources): administrators' access is for namespaces that have its label;
//! who allocates and reserves a claim has the right to `resourceclaims/binding`, and a driver that to `resourceclaims/driver`.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use axum::http::Method;
use serde_json::Value;

use crate::{
    apiserver::{
        AdmissionAttributes, AdmissionPlugin, ApiError, Attributes, Authorizers, Errors, Operation, User, forbidden,
        pipeline::validation::names::subdomain,
    },
    store::{Key, Store},
};

const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
const ADMIN: &str = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
/// What the token of a pod's service account says of its node.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Refuses the write.
#[derive(Debug)]
pub(super) struct DeviceClaimRights {
    pub(super) store: Store,
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl AdmissionPlugin for DeviceClaimRights {
    fn name(&self) -> &'static str {
        "ResourceClaimRights"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let version = &attributes.target.version;
        if version.group != GROUP {
            return Ok(());
        }
        let mut errors = Errors::default();
        match (version.plural.as_ref(), attributes.target.subresource.as_deref(), attributes.old) {
            (CLAIMS, None, None) => self.admin_requests(attributes, &object["spec"], &mut errors),
            ("resourceclaimtemplates", None, None) => {
                self.admin_requests(attributes, &object["spec"]["spec"], &mut errors);
            }
            (CLAIMS, Some("status"), Some(old)) => {
                let (now, before) = (&object["status"], &old["status"]);
                self.admin_results(attributes, now, before, &mut errors);
                self.binding(attributes, now, before, &mut errors);
                if now["allocation"].is_object() {
                    self.devices(attributes, now, before, &mut errors);
                }
            }
            _ => {}
        }
        if errors.0.is_empty() {
            return Ok(());
        }
        Err(ApiError::invalid(version, attributes.name(object), &errors.0))
    }
}

impl DeviceClaimRights {
    /// Whether administrators' access may be asked for in the namespace of a write.
    fn is_for_administrators(&self, attributes: &AdmissionAttributes<'_>) -> bool {
        let name = attributes.target.namespace.clone().unwrap_or_default();
        let namespace = self.store.get(self.store.resource("namespaces"), &Key { namespace: String::new(), name });
        namespace.is_some_and(|namespace| namespace.value()["metadata"]["labels"][ADMIN_LABEL] == "true")
    }

    fn admin_requests(&self, attributes: &AdmissionAttributes<'_>, spec: &Value, errors: &mut Errors) {
        let wants = |request: &Value| request["exactly"]["adminAccess"] == true;
        let first = spec["devices"]["requests"].as_array().and_then(|all| all.iter().position(wants));
        if let Some(at) = first.filter(|_| !self.is_for_administrators(attributes)) {
            errors.forbidden(format!("spec.devices.requests[{at}].adminAccess"), ADMIN);
        }
    }

    /// What was allocated so stays.
    fn admin_results(&self, attributes: &AdmissionAttributes<'_>, now: &Value, before: &Value, errors: &mut Errors) {
        let first = |status: &Value| {
            let results = status["allocation"]["devices"]["results"].as_array();
            results.and_then(|all| all.iter().position(|result| result["adminAccess"] == true))
        };
        let added = first(now).filter(|_| first(before).is_none());
        if let Some(at) = added.filter(|_| !self.is_for_administrators(attributes)) {
            errors.forbidden(format!("status.allocation.devices.results[{at}].adminAccess"), ADMIN);
        }
    }

    fn binding(&self, attributes: &AdmissionAttributes<'_>, now: &Value, before: &Value, errors: &mut Errors) {
        let verb = verb(attributes);
        let wanted = Attributes { verb, subresource: "binding", ..of_claims() };
        if ["allocation", "reservedFor"].iter().any(|field| now[*field] != before[*field])
            && let Err(why) = self.may(attributes.user, &wanted)
        {
            let why = format!(
                "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {why}"
            );
            errors.forbidden("status.allocation", &why);
        }
    }

    /// Each driver writes of its own devices, and one that runs with a token of a node of that node's claims.
    fn devices(&self, attributes: &AdmissionAttributes<'_>, now: &Value, before: &Value, errors: &mut Errors) {
        let (verb, user) = (verb(attributes), attributes.user);
        let is_there = node_of(&now["allocation"]).is_some_and(|node| node_of_token(user) == Some(node));
        let prefixes: &[&str] = if is_there { &["associated-node", "arbitrary-node"] } else { &["arbitrary-node"] };
        let verbs: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}:{verb}")).collect();
        let namespace = attributes.target.namespace.as_deref().unwrap_or("");
        for driver in changed_drivers(now, before) {
            let refusal = |verb: &String| {
                let wanted = Attributes { verb, subresource: "driver", namespace, name: driver, ..of_claims() };
                self.may(user, &wanted).err()
            };
            let refusals: Option<Vec<String>> = verbs.iter().map(refusal).collect();
            // Any of the verbs is enough.
            if let Some(why) = refusals.and_then(|all| all.into_iter().next()) {
                let verbs = verbs.join(" ");
                let why = format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{verbs}]\" permission: {why}"
                );
                errors.forbidden("status.devices", &why);
            }
        }
    }

    fn may(&self, user: &User, wanted: &Attributes<'_>) -> Result<(), String> {
        self.authorizers.authorize(user, wanted).map_err(|why| forbidden(user, wanted, &why).message().to_owned())
    }
}

fn of_claims<'a>() -> Attributes<'a> {
    Attributes { is_resource: true, group: GROUP, version: "v1", resource: CLAIMS, ..Attributes::default() }
}

fn verb(attributes: &AdmissionAttributes<'_>) -> &'static str {
    if *attributes.method == Method::PATCH { "patch" } else { "update" }
}

/// The drivers whose devices are added, changed or removed.
fn changed_drivers<'a>(now: &'a Value, before: &'a Value) -> BTreeSet<&'a str> {
    fn devices(status: &Value) -> BTreeMap<[&str; 4], &Value> {
        let all = status["devices"].as_array().into_iter().flatten();
        all.map(|device| {
            (["driver", "pool", "device", "shareID"].map(|field| device[field].as_str().unwrap_or("")), device)
        })
        .collect()
    }
    let (now, before) = (devices(now), devices(before));
    let differs = |id: &&[&'a str; 4]| now.get(*id) != before.get(*id);
    now.keys().chain(before.keys()).filter(differs).map(|[driver, ..]| *driver).collect()
}

/// The one node that an allocation is bound to.
fn node_of(allocation: &Value) -> Option<&str> {
    let [term] = allocation["nodeSelector"]["nodeSelectorTerms"].as_array()?.as_slice() else { return None };
    let has_expressions = term["matchExpressions"].as_array().is_some_and(|all| !all.is_empty());
    let [field] = term["matchFields"].as_array().filter(|_| !has_expressions)?.as_slice() else { return None };
    let [name] = field["values"].as_array()?.as_slice() else { return None };
    let is_name = field["key"] == "metadata.name" && field["operator"] == "In";
    name.as_str().filter(|name| is_name && !name.is_empty())
}

/// The node of a pod's service account.
fn node_of_token(user: &User) -> Option<&str> {
    let [namespace, name] = user.name.strip_prefix("system:serviceaccount:")?.split(':').collect::<Vec<_>>()[..] else {
        return None;
    };
    let [node] = user.extra.get(NODE_NAME)?.as_slice() else { return None };
    let named = !namespace.is_empty() && !name.is_empty();
    Some(node.as_str()).filter(|node| named && subdomain(node).is_none())
}
