//! A writer of an admission policy must be allowed to read its parameters, since the policy's messages may disclose
//! them (upstream: `authorize` in the strategies of the four resources).

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde_json::Value;
use windlass_apimachinery::group_version::GroupVersion;
use windlass_identity::pki::MASTERS_GROUP;

use crate::{
    apiserver::{
        AdmissionAttributes, AdmissionPlugin, ApiError, Attributes, Authorizers, Errors, Operation, User,
        types::Definition,
    },
    store::{Key, Store},
};

const GROUP: &str = "admissionregistration.k8s.io";

/// The plural names of built-in kinds, by group, version and kind.
pub(crate) type Plurals = BTreeMap<[String; 3], String>;

/// The plural names of kinds.
pub(crate) fn plurals(definitions: &[Definition]) -> Plurals {
    let of = |definition: &Definition| {
        let (group, plural) = (definition.resource.group.to_string(), definition.resource.plural.to_string());
        let kind = definition.resource.kind.to_string();
        let versions: Vec<String> = definition.versions.iter().map(|version| version.name.to_string()).collect();
        versions.into_iter().map(move |version| ([group.clone(), version, kind.clone()], plural.clone()))
    };
    definitions.iter().flat_map(of).collect()
}

/// Refuses the write.
#[derive(Debug)]
pub(super) struct PolicyParameters {
    pub(super) store: Store,
    pub(super) authorizers: Authorizers,
    pub(super) plurals: Arc<Plurals>,
}

#[async_trait]
impl AdmissionPlugin for PolicyParameters {
    fn name(&self) -> &'static str {
        "PolicyParameters"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let version = &attributes.target.version;
        if version.group != GROUP || attributes.target.subresource.is_some() || attributes.user.is_in(MASTERS_GROUP) {
            return Ok(());
        }
        let (field, refused) = match version.plural.as_ref() {
            "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
                ("paramKind", self.policy(attributes, &object["spec"]["paramKind"]))
            }
            "validatingadmissionpolicybindings" => {
                ("paramRef", self.binding(attributes.user, &object["spec"], "validatingadmissionpolicies"))
            }
            "mutatingadmissionpolicybindings" => {
                ("paramRef", self.binding(attributes.user, &object["spec"], "mutatingadmissionpolicies"))
            }
            _ => return Ok(()),
        };
        let Err(why) = refused else { return Ok(()) };
        let mut errors = Errors::default();
        errors.forbidden(format!("spec.{field}"), &why);
        Err(ApiError::invalid(version, attributes.name(object), &errors.0))
    }
}

/// What is asked for: a group, a version and a resource.
type Asked = [String; 3];

fn everything() -> Asked {
    ["*", "*", "*"].map(str::to_owned)
}

/// A user as Go shows it.
fn shown(user: &User) -> String {
    let extra: Vec<String> = user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}

impl PolicyParameters {
    /// A user who may read all objects of a kind may name it. An unchanged one is not checked again.
    fn policy(&self, attributes: &AdmissionAttributes<'_>, kind: &Value) -> Result<(), String> {
        if !kind.is_object() || attributes.old.is_some_and(|old| old["spec"]["paramKind"] == *kind) {
            return Ok(());
        }
        let (asked, _) = self.resolve(kind);
        if self.may(attributes.user, "get", &asked, ("*", "*")) {
            return Ok(());
        }
        let (name, version) = (kind["kind"].as_str().unwrap_or(""), kind["apiVersion"].as_str().unwrap_or(""));
        let user = shown(attributes.user);
        Err(format!(
            "user {user} must have \"get\" permission on all objects of the referenced paramKind (kind={name}, apiVersion={version})"
        ))
    }

    /// A user who may read the parameters themselves may name them; checked at each write, as upstream compares
    /// pointers.
    fn binding(&self, user: &User, spec: &Value, policies: &str) -> Result<(), String> {
        let reference = &spec["paramRef"];
        if !reference.is_object() {
            return Ok(());
        }
        let text = |field: &str| reference[field].as_str().unwrap_or("");
        let policy_name = spec["policyName"].as_str().unwrap_or("");
        let key = Key { namespace: String::new(), name: policy_name.to_owned() };
        let policy = self.store.get(self.store.resource(&format!("{policies}.{GROUP}")), &key);
        let kind = policy.as_ref().map(|policy| policy.value()["spec"]["paramKind"].take());
        let (asked, known) =
            kind.as_ref().filter(|kind| kind.is_object()).map_or((everything(), true), |kind| self.resolve(kind));
        let verb = if text("name").is_empty() { "list" } else { "get" };
        if self.may(user, verb, &asked, (text("namespace"), text("name"))) {
            return Ok(());
        }
        let user = shown(user);
        let all = format!(
            "to determine minimum required permissions and user {user} does not have \"{verb}\" permission for all groups, versions and resources"
        );
        Err(match kind {
            None => format!("unable to get policy {policy_name} {all}"),
            Some(kind) if !known => {
                let (name, version) = (kind["kind"].as_str().unwrap_or(""), kind["apiVersion"].as_str().unwrap_or(""));
                format!("unable to resolve paramKind &{{{version} {name}}} {all}")
            }
            // Upstream's words have the two in the other order there.
            Some(_) if policies.starts_with("mutating") => {
                format!("user {verb} does not have \"{user}\" permission on the object referenced by paramRef")
            }
            Some(_) => format!("user {user} does not have \"{verb}\" permission on the object referenced by paramRef"),
        })
    }

    /// What rights a kind needs, and whether its resource is known; all resources of its version otherwise.
    fn resolve(&self, kind: &Value) -> (Asked, bool) {
        let name = kind["kind"].as_str().unwrap_or("");
        let GroupVersion { group, version } = GroupVersion::parse(kind["apiVersion"].as_str().unwrap_or(""));
        let key = [group, version, name].map(str::to_owned);
        let plural = self.plurals.get(&key).cloned().or_else(|| self.custom(group, version, name));
        let known = plural.is_some();
        let [group, version, _] = key;
        ([group, version, plural.unwrap_or_else(|| "*".to_owned())], known)
    }

    /// The plural name of a kind that a definition serves.
    fn custom(&self, group: &str, version: &str, kind: &str) -> Option<String> {
        let definitions = self.store.resource("customresourcedefinitions.apiextensions.k8s.io");
        self.store.list(definitions, None).0.iter().find_map(|object| {
            let definition = object.value();
            let (spec, names) = (&definition["spec"], &definition["status"]["acceptedNames"]);
            let serves = |one: &Value| one["name"] == version && one["served"] == true;
            let is_it = spec["group"] == group && names["kind"] == kind;
            let served = is_it && spec["versions"].as_array().is_some_and(|all| all.iter().any(serves));
            names["plural"].as_str().filter(|_| served).map(str::to_owned)
        })
    }

    fn may(&self, user: &User, verb: &str, asked: &Asked, (namespace, name): (&str, &str)) -> bool {
        let [group, version, resource] = asked.each_ref().map(String::as_str);
        let wanted =
            Attributes { verb, is_resource: true, group, version, resource, namespace, name, ..Attributes::default() };
        self.authorizers.authorize(user, &wanted).is_ok()
    }
}
