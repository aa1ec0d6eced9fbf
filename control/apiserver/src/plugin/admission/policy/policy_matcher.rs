//! Which policies are for a request, and with which parameters.
//!
//! Upstream: `policy/generic/policy_matcher.go`, and `CollectParams` of `policy_dispatcher.go`.

use std::sync::Arc;

use serde_json::{Map, Value};
use windlass_apimachinery::group_version::GroupVersion;

use super::configuration::{Binding, ParamKind, ParamRef, Policy};
use crate::{
    apiserver::{
        ApiError,
        types::{Catalog, ConversionError, Version},
    },
    plugin::admission::predicates::{Request, namespace_object},
    store::{Key, Object, Store},
};

/// The version in which a policy is shown the object, if it is for a request.
///
/// # Errors
/// Why nobody knows.
pub(super) fn version_for<E>(
    store: &Store,
    request: &Request<'_>,
    policy: &Policy<E>,
) -> Result<Option<Arc<Version>>, String> {
    let criteria = policy.criteria.as_ref().map_err(Clone::clone)?;
    let version = request.version_for(store, criteria).map_err(|error| error.message().to_owned())?;
    if version.is_some() {
        policy.param_kind.as_ref().map_or(Ok(()), |kind| param_version(&request.attributes.catalog, kind).map(drop))?;
    }
    Ok(version)
}

/// The version of a resource that has a kind.
fn param_version<'c>(catalog: &'c Catalog, kind: &ParamKind) -> Result<&'c Arc<Version>, String> {
    let GroupVersion { group, version } = GroupVersion::parse(&kind.api_version);
    let versions = catalog.of_kind(group, &kind.kind);
    versions.iter().find(|served| served.gvk.version == version).ok_or_else(|| {
        let kind = GroupVersion { group, version }.with_kind(&kind.kind);
        format!("failed to find resource referenced by paramKind: '{kind}'")
    })
}

/// The parameters with which a policy is evaluated for a binding, null for none of them; an empty list if it is not for the
/// request.
///
/// # Errors
/// Why they cannot be had.
pub(super) async fn params_for<E>(
    store: &Store,
    request: &Request<'_>,
    policy: &Policy<E>,
    binding: &Binding,
) -> Result<Vec<Value>, String> {
    if let Some(criteria) = binding.criteria.as_ref().map_err(Clone::clone)? {
        let matched = request.version_for(store, criteria).map_err(|error| error.message().to_owned())?;
        if matched.is_none() {
            return Ok(Vec::new());
        }
    }
    let (Some(kind), Some(reference)) = (&policy.param_kind, &binding.params) else { return Ok(vec![Value::Null]) };
    let version = param_version(&request.attributes.catalog, kind)?;
    let found = find_params(store, version, kind, reference, request.namespace()).await?;
    if found.is_empty() && reference.denies_without {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found)
}

async fn find_params(
    store: &Store,
    version: &Version,
    kind: &ParamKind,
    reference: &ParamRef,
    namespace_of_request: &str,
) -> Result<Vec<Value>, String> {
    let Some(id) = version.id() else {
        let ParamKind { api_version, kind } = kind;
        return Err(format!(
            "paramKind kind `&ParamKind{{APIVersion:{api_version},Kind:{kind},}}` not yet synced to use for admission"
        ));
    };
    let namespace = match (version.namespaced, &*reference.namespace) {
        (false, "") => None,
        (false, _) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
        (true, "") if namespace_of_request.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, "") => Some(namespace_of_request),
        (true, named) => Some(named),
    };
    let (objects, selector) = match (&*reference.name, &reference.selector) {
        ("", None) => return Err("one of name or selector must be provided".to_owned()),
        ("", Some(selector)) => (store.list(id, namespace).0, Some(selector.as_ref().map_err(Clone::clone)?)),
        (_, Some(_)) => return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned()),
        (name, None) => {
            let key = Key { namespace: namespace.unwrap_or("").to_owned(), name: name.to_owned() };
            (store.get(id, &key).into_iter().collect(), None)
        }
    };
    let mut found = decoded(version, &objects).await.map_err(|error| error.to_string())?;
    found.retain(|object| selector.is_none_or(|selector| selector.matches(object)));
    Ok(found)
}

async fn decoded(version: &Version, objects: &[Arc<Object>]) -> Result<Vec<Value>, ConversionError> {
    let conversions = version.conversions_of(objects).await?;
    objects.iter().map(|object| version.decode(object, &conversions)).collect()
}

/// What expressions see of the namespace of the object: null for what is in none, and for a Namespace.
///
/// # Errors
/// When there is no such namespace.
pub(super) fn shown_namespace(store: &Store, request: &Request<'_>) -> Result<Value, ApiError> {
    if request.is_namespace() || request.namespace().is_empty() {
        return Ok(Value::Null);
    }
    Ok(exposed(&namespace_object(store, request.namespace())?.value()))
}

/// The fields of a Namespace that expressions can name. Upstream: `CreateNamespaceObject`.
fn exposed(namespace: &Value) -> Value {
    const METADATA: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    let mut metadata = Map::new();
    for field in METADATA {
        metadata.extend(namespace["metadata"].get(field).map(|value| (field.to_owned(), value.clone())));
    }
    let mut shown = Map::new();
    shown.insert("metadata".to_owned(), Value::Object(metadata));
    for field in ["spec", "status"] {
        shown.insert(field.to_owned(), namespace.get(field).cloned().unwrap_or_else(|| Value::Object(Map::new())));
    }
    Value::Object(shown)
}

/// How the name of a policy's binding begins an error about it.
pub(super) fn misconfigured(is_of_binding: bool, why: &str) -> String {
    format!("failed to configure {}: {why}", if is_of_binding { "binding" } else { "policy" })
}
