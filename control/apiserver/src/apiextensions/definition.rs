//! The resource that a CustomResourceDefinition defines. Pure.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_apimachinery::selectors::SelectableField;

use super::{columns, conversion_webhook::ConversionWebhooks, scale};
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{
            errors::Errors,
            names::{is_standard_finalizer, qualified_problems},
        },
        types::{
            Conversion, Definition, Generation, Name, Resource, ScalePaths, Subresource, TypeSchema, VersionSpec,
            compare_versions, keep_metadata, status_keeps_metadata,
        },
    },
    kinds::{apiextensions::custom_resource_definition::storage_version, shared::conditions, types},
};

fn text(value: &Value, field: &str) -> Name {
    value[field].as_str().unwrap_or("").to_owned().into()
}

/// The names in a list.
fn names(value: &Value, field: &str) -> Vec<Name> {
    let all = value[field].as_array().into_iter().flatten();
    all.filter_map(Value::as_str).map(|name| name.to_owned().into()).collect()
}

/// Whether a definition is served: its names are accepted, or were.
pub(super) fn is_served(definition: &Value) -> bool {
    conditions::is_true(definition, "NamesAccepted") || conditions::is_true(definition, "Established")
}

/// What of a definition decides how it is served: another fingerprint needs another entry in the catalog.
pub(super) fn fingerprint(definition: &Value) -> String {
    let metadata = &definition["metadata"];
    let terminating = !metadata["deletionTimestamp"].is_null();
    let names = &definition["status"]["acceptedNames"];
    format!("{} {} {terminating} {names}", metadata["uid"], metadata["generation"])
}

/// The resource of a definition, under its accepted names.
pub(super) fn resource_of(definition: &Value, webhooks: &ConversionWebhooks) -> Definition {
    let spec = &definition["spec"];
    let accepted = &definition["status"]["acceptedNames"];
    let group = text(spec, "group");
    let versions_of = spec["versions"].as_array().into_iter().flatten();
    let scales = versions_of.filter_map(|version| {
        let api_version = format!("{group}/{}", version["name"].as_str().unwrap_or(""));
        Some((api_version, scale_paths(&version["subresources"]["scale"])?))
    });
    let strategy = CustomResource { scales: scales.collect() };
    let mut resource = Resource::new(group.clone(), text(accepted, "plural"), text(accepted, "kind"), strategy);
    resource.list_kind = text(accepted, "listKind");
    resource.singular = text(accepted, "singular");
    resource.short_names = names(accepted, "shortNames");
    resource.categories = names(accepted, "categories");
    resource.namespaced = spec["scope"] == "Namespaced";
    resource.allow_unconditional_update = false;
    resource.generation = Generation::Counted;
    resource.identity = text(&definition["metadata"], "uid");
    resource.terminating = !definition["metadata"]["deletionTimestamp"].is_null();
    let kind = resource.kind.clone();
    let object_meta = types::schema("meta/v1.ObjectMeta");
    let all = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let schemas: Vec<TypeSchema> = all
        .iter()
        .map(|version| TypeSchema::custom(kind.clone(), &version["schema"]["openAPIV3Schema"], &object_meta))
        .collect();
    let api_version = |version: &Value| format!("{group}/{}", version["name"].as_str().unwrap_or(""));
    resource.schemas = all.iter().map(api_version).zip(schemas.iter().cloned()).collect();
    let conversion = match spec["conversion"]["strategy"].as_str() {
        Some("Webhook") => Conversion::Webhook(webhooks.converter(definition)),
        _ => Conversion::Rename,
    };
    let served: Vec<&Value> = all.iter().filter(|version| version["served"] == true).collect();
    let of_served = all.iter().zip(schemas).filter(|(version, _)| version["served"] == true);
    let versions = of_served.map(|(version, schema)| {
        let mut one = VersionSpec::new(text(version, "name"), schema);
        one.table = columns::table(version);
        one.selectable = selectable(version);
        one.subresources = subresources(&version["subresources"]);
        one.conversion = conversion.clone();
        one.deprecation_warning = deprecation(&group, &kind, version, &served);
        one
    });
    let versions = versions.collect();
    Definition::of(resource, versions, storage_version(definition))
}

fn selectable(version: &Value) -> Vec<SelectableField> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    let paths = fields.filter_map(|field| field["jsonPath"].as_str()?.strip_prefix('.'));
    paths.map(|path| SelectableField { label: path.to_owned().into(), ..SelectableField::path("") }).collect()
}

fn subresources(subresources: &Value) -> Vec<Subresource> {
    let mut all = Vec::new();
    if subresources["status"].is_object() {
        all.push(Subresource::status());
    }
    all.extend(scale_paths(&subresources["scale"]).map(Subresource::scale));
    all
}

fn scale_paths(scale: &Value) -> Option<ScalePaths> {
    let path = |field: &str| scale[field].as_str().unwrap_or("").to_owned();
    scale.is_object().then(|| ScalePaths {
        spec_replicas: path("specReplicasPath"),
        status_replicas: path("statusReplicasPath"),
        selector: Some(path("labelSelectorPath")).filter(|path| !path.is_empty()),
    })
}

/// The warning of a deprecated version: its own text, or which newer version to use.
fn deprecation(group: &str, kind: &str, version: &Value, served: &[&Value]) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(warning) = version["deprecationWarning"].as_str() {
        return Some(warning.to_owned());
    }
    let name = version["name"].as_str().unwrap_or("");
    let mut newer: Vec<&str> = served
        .iter()
        .filter(|other| other["deprecated"] != true)
        .filter_map(|other| other["name"].as_str())
        .filter(|other| compare_versions(other, name).is_lt())
        .collect();
    newer.sort_by(|a, b| compare_versions(a, b));
    let hint = newer.first().map(|best| format!("; use {group}/{best} {kind}")).unwrap_or_default();
    Some(format!("{group}/{name} {kind} is deprecated{hint}"))
}

/// The strategy of custom resources: upstream's defaults, whatever their names are.
#[derive(Debug)]
struct CustomResource {
    /// Where each version has what its Scale shows, by its `apiVersion`.
    scales: BTreeMap<String, ScalePaths>,
}

impl CustomResource {
    fn scale(&self, object: &Value) -> Option<&ScalePaths> {
        self.scales.get(object["apiVersion"].as_str()?)
    }
}

impl Strategy for CustomResource {
    /// Through `/status` nothing of the metadata changes but the owners.
    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        if let Some(paths) = self.scale(object) {
            scale::replicas(object, &paths.spec_replicas, errors);
            scale::of_status(object, paths, errors);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        if let Some(paths) = self.scale(new) {
            scale::of_status(new, paths, errors);
        }
    }

    /// A finalizer without a domain may be another controller's.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let before = old.map(finalizers).unwrap_or_default();
        let added = finalizers(new).into_iter().filter(|finalizer| !before.contains(finalizer));
        added.filter_map(|finalizer| finalizer.as_str().map(finalizer_warnings)).flatten().collect()
    }
}

/// Warnings about a finalizer (upstream: customresource/validator.go, `validateKubeFinalizerName`).
fn finalizer_warnings(finalizer: &str) -> Vec<String> {
    let mut told = qualified_problems(finalizer);
    if !finalizer.contains('/') && !is_standard_finalizer(finalizer) {
        let path = if finalizer.contains('.') { "including a path (/) " } else { "" };
        told.push(format!(
            "prefer a domain-qualified finalizer name {path}to avoid accidental conflicts with other finalizer writers"
        ));
    }
    told.iter().map(|why| format!("metadata.finalizers: {finalizer:?}: {why}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_are_warned_of_in_upstreams_words() {
        const NAME: &str = "name part must consist of";
        for (finalizer, wanted) in [
            ("a.example/b", &[][..]),
            ("kubernetes", &[]),
            ("orphan", &[]),
            ("foregroundDeletion", &[]),
            ("plain", &["prefer a domain-qualified finalizer name to avoid"]),
            (
                "resources-finalizer.argocd.argoproj.io",
                &["prefer a domain-qualified finalizer name including a path (/) to avoid"],
            ),
            ("a b", &[NAME, "prefer a domain-qualified finalizer name to avoid"]),
        ] {
            let told = finalizer_warnings(finalizer);
            assert_eq!(told.len(), wanted.len(), "{told:?}");
            for (told, wanted) in told.iter().zip(wanted) {
                assert!(told.starts_with(&format!("metadata.finalizers: {finalizer:?}: {wanted}")), "{told}");
            }
        }
    }
}
