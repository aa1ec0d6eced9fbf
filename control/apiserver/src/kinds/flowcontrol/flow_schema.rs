//! FlowSchema. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, unless_zero};

use super::conditions;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    kinds::{
        shared::{
            cells::text,
            conditions::get,
            field::Field,
            tables::{AGE, column, named},
        },
        types,
    },
};

const MAX_PRECEDENCE: i64 = 10_000;
const EXEMPT: &str = "exempt";
const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("flowcontrol.apiserver.k8s.io", "flowschemas", "FlowSchema", FlowSchema);
    resource.namespaced = false;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("PriorityLevel", "The level of its requests."),
        column("MatchingPrecedence", "Its place among the schemas."),
        column("DistinguisherMethod", "What makes requests one flow."),
        AGE,
        column("MissingPL", "Whether the level is missing."),
    ];
    v1.table = named(columns, |object, age| {
        let spec = &object["spec"];
        let method = spec["distinguisherMethod"]["type"].as_str().unwrap_or("<none>");
        let missing = get(object, "Dangling").map_or("?", |condition| text(&condition["status"]));
        vec![
            json!(text(&spec["priorityLevelConfiguration"]["name"])),
            json!(spec["matchingPrecedence"].as_i64().unwrap_or(0)),
            json!(method),
            json!(age),
            json!(missing),
        ]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct FlowSchema;

impl Strategy for FlowSchema {
    fn default(&self, object: &mut Map<String, Value>) {
        unless_zero(child(object, "spec"), "matchingPrecedence", json!(1000));
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        let spec = root.at("spec");
        let precedence = spec.at("matchingPrecedence");
        match precedence.number().unwrap_or(0) {
            ..=0 => precedence.invalid("must be a positive value", errors),
            1 if root.below("metadata.name").text() != EXEMPT => {
                precedence.invalid("only the schema named 'exempt' may have matchingPrecedence 1", errors);
            }
            1..=MAX_PRECEDENCE => {}
            _ => precedence.invalid(&format!("must not be greater than {MAX_PRECEDENCE}"), errors),
        }
        let method = spec.at("distinguisherMethod");
        if method.is_set() && !METHODS.contains(&method.at("type").text()) {
            method.at("type").not_supported_as(&method.internal(&[("Type", "type")]), &METHODS, errors);
        }
        let level = spec.below("priorityLevelConfiguration.name");
        if level.text().is_empty() {
            level.required("must reference a priority level", errors);
        } else {
            level.fits(names::subdomain, errors);
        }
        for rule in spec.at("rules").items() {
            validate_rule(&rule, errors);
        }
        super::validate_fixed(object, "FlowSchema", None, errors);
        conditions::validate(object, errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        conditions::validate(new, errors);
    }
}

fn validate_rule(rule: &Field<'_>, errors: &mut Errors) {
    let subjects = rule.at("subjects");
    if subjects.is_empty() {
        subjects.required("subjects must contain at least one value", errors);
    }
    for subject in subjects.items() {
        validate_subject(&subject, errors);
    }
    let (resources, others) = (rule.at("resourceRules"), rule.at("nonResourceRules"));
    if resources.is_empty() && others.is_empty() {
        rule.required("at least one of resourceRules and nonResourceRules has to be non-empty", errors);
    }
    for each in resources.items() {
        resource_rule(&each, errors);
    }
    for each in others.items() {
        non_resource_rule(&each, errors);
    }
}

fn validate_subject(subject: &Field<'_>, errors: &mut Errors) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.at("kind");
    let Some((name, key)) = KINDS.iter().find(|(name, _)| *name == kind.text()) else {
        return kind.one_of(&["Group", "ServiceAccount", "User"], errors);
    };
    let own = subject.at(key);
    if !own.is_set() {
        own.required(&format!("{key} is required when subject kind is '{name}'"), errors);
    } else if *key == "serviceAccount" {
        account(&own, errors);
    } else if own.at("name").text().is_empty() {
        own.at("name").required("", errors);
    }
    for (name, other) in KINDS.iter().filter(|(_, other)| other != key).map(|(name, key)| (name, subject.at(key))) {
        if other.is_set() {
            let key = other.path.name();
            other.forbidden(&format!("{key} is forbidden when subject kind is not '{name}'"), errors);
        }
    }
}

fn account(account: &Field<'_>, errors: &mut Errors) {
    let (name, namespace) = (account.at("name"), account.at("namespace"));
    match name.text() {
        "" => name.required("", errors),
        "*" => {}
        _ => name.fits(names::subdomain, errors),
    }
    if namespace.text().is_empty() {
        namespace.required("must specify namespace for service account", errors);
    } else {
        namespace.fits(names::label, errors);
    }
}

/// Refuses a list without items, and one where `*` is not alone.
fn all_or_some(list: &Field<'_>, (missing, what): (&str, &str), errors: &mut Errors) {
    if list.is_empty() {
        list.required(missing, errors);
    } else if list.len() > 1 && list.texts().contains(&"*") {
        list.invalid(&format!("if '*' is present, must not specify other {what}"), errors);
    }
}

fn verbs(verbs: &Field<'_>, errors: &mut Errors) {
    all_or_some(verbs, ("verbs must contain at least one value", "verbs"), errors);
    let texts = verbs.texts();
    if !texts.contains(&"*") && texts.iter().any(|verb| !VERBS.contains(verb)) {
        errors.not_supported(&verbs.path, verbs.value, &VERBS);
    }
}

fn resource_rule(rule: &Field<'_>, errors: &mut Errors) {
    verbs(&rule.at("verbs"), errors);
    let group = ("resource rules must supply at least one api group", "api groups");
    all_or_some(&rule.at("apiGroups"), group, errors);
    all_or_some(&rule.at("resources"), ("resource rules must supply at least one resource", "resources"), errors);
    let namespaces = rule.at("namespaces");
    if namespaces.is_empty() {
        if rule.at("clusterScope").value != &Value::Bool(true) {
            namespaces
                .required("resource rules that are not cluster scoped must supply at least one namespace", errors);
        }
        return;
    }
    if namespaces.texts().contains(&"*") {
        if namespaces.len() > 1 {
            namespaces.invalid("if '*' is present, must not specify other namespaces", errors);
        }
        return;
    }
    for namespace in namespaces.items() {
        if let Some(why) = names::label(namespace.text()) {
            namespace.invalid(&format!("each member of this list must be '*' or a DNS-1123 label; {why}"), errors);
        }
    }
}

fn non_resource_rule(rule: &Field<'_>, errors: &mut Errors) {
    verbs(&rule.at("verbs"), errors);
    let urls = rule.at("nonResourceURLs");
    all_or_some(&urls, ("nonResourceURLs must contain at least one value", "non-resource URLs"), errors);
    if urls.texts().contains(&"*") {
        return;
    }
    for url in urls.items() {
        let text = url.text();
        let stars = text.matches('*').count();
        let why = match () {
            () if text.is_empty() => "must not be empty",
            () if text == "/" => continue,
            () if !text.starts_with('/') => "must start with slash",
            () if text.contains(' ') => "must not contain white-space",
            () if text.contains("//") => "must not contain double slash",
            () if stars > 1 || (stars == 1 && !text.ends_with("/*")) => "wildcard can only do suffix matching",
            () => continue,
        };
        url.invalid(why, errors);
    }
}
