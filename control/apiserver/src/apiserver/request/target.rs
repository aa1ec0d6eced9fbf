//! The target of a request: the version of a resource that is served at its path, and the object or subresource.

use std::sync::Arc;

use super::attributes::Attributes;
use super::{
    error::ApiError,
    request_info::{RequestInfo, RequestOptions},
};
use crate::apiserver::types::{Catalog, Extension, Serves, Subresource, Version};
use crate::store::{Key, ResourceId};

/// What a request reads or writes.
#[derive(Debug, Clone)]
pub struct Target {
    /// The version of the resource.
    pub(crate) version: Arc<Version>,
    /// `None` for cluster-scoped objects and for lists of all namespaces.
    pub(crate) namespace: Option<String>,
    /// The object's name; `None` for collections.
    pub(crate) name: Option<String>,
    /// The name of the subresource.
    pub(crate) subresource: Option<String>,
}

impl Target {
    /// The target of a request, if it is served.
    pub(in crate::apiserver) fn resolve(catalog: &Catalog, info: &RequestInfo) -> Option<Self> {
        // Of the paths that begin with a verb only those that watch are left.
        if info.has_verb_prefix && info.verb != "watch" {
            return None;
        }
        let version = catalog.find(&info.group, &info.version, &info.resource)?;
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (name, subresource) = (some(&info.path_name), some(&info.subresource));
        let namespace = if version.namespaced && info.in_namespace { some(&info.namespace) } else { None };
        let served = subresource.as_deref().and_then(|name| version.subresource(name));
        let has_paths = served.is_some_and(|served| matches!(served.serves, Serves::Proxy(_)));
        // The path of a Namespace names it as a namespace, too; all else that has a namespace in its path is in it.
        let is_namespace = version.group.is_empty() && version.plural == "namespaces" && !info.in_namespace;
        let misplaced = !version.namespaced && !info.namespace.is_empty() && !is_namespace;
        let unknown = subresource.is_some() && (served.is_none() || name.is_none() || info.has_verb_prefix);
        let homeless = version.namespaced && namespace.is_none() && (name.is_some() || !info.namespace.is_empty());
        if misplaced || unknown || homeless || (!has_paths && !info.rest.is_empty()) {
            return None;
        }
        Some(Self { version: Arc::clone(version), namespace, name, subresource })
    }

    /// The name of the object, empty for collections.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("")
    }

    /// The name of the subresource, or empty.
    pub(crate) fn subresource(&self) -> &str {
        self.subresource.as_deref().unwrap_or("")
    }

    /// The served subresource.
    pub(crate) fn served(&self) -> Option<&Subresource> {
        self.version.subresource(self.subresource.as_deref()?)
    }

    /// The object itself.
    pub(crate) fn whole(&self) -> Self {
        Self { subresource: None, ..self.clone() }
    }

    /// The object's key in the store.
    pub(crate) fn key(&self) -> Key {
        Key { namespace: self.namespace.clone().unwrap_or_default(), name: self.name.clone().unwrap_or_default() }
    }

    /// The id of the resource in the store.
    ///
    /// # Errors
    /// When its objects are not stored.
    pub(crate) fn id(&self) -> Result<ResourceId, ApiError> {
        self.version.id().ok_or_else(|| ApiError::internal(format!("{} are not stored", self.version.group_resource())))
    }

    /// Whether this is the resource of a group and plural name.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.version.group == group && self.version.plural == plural
    }
}

impl Target {
    /// What is authorized when a request does `verb` to the target.
    pub(in crate::apiserver) fn attributes<'a>(&'a self, verb: &'a str) -> Attributes<'a> {
        Attributes {
            verb,
            is_resource: true,
            group: &self.version.gvk.group,
            version: &self.version.gvk.version,
            resource: &self.version.plural,
            subresource: self.subresource(),
            namespace: self.scope(),
            name: self.name(),
            ..Attributes::default()
        }
    }

    /// Where rights to the target count: a Namespace is in itself.
    fn scope(&self) -> &str {
        let own = if self.is("", "namespaces") { self.name.as_deref() } else { None };
        self.namespace.as_deref().or(own).unwrap_or("")
    }
}

/// A request as it was read: what it is about, its options, and what it leads to. Authorization, the audit log and the
/// handler are all given the same target, so that no right reaches what was not asked for.
#[derive(Debug)]
pub(in crate::apiserver) struct Route {
    pub(in crate::apiserver) info: RequestInfo,
    pub(in crate::apiserver) options: RequestOptions,
    /// `None` where no resource is served, or an extension API server does it.
    pub(in crate::apiserver) target: Option<Target>,
    /// What is served by an extension API server.
    pub(in crate::apiserver) extension: Option<Arc<Extension>>,
}

impl Route {
    pub(in crate::apiserver) fn new(catalog: &Catalog, info: RequestInfo, options: RequestOptions) -> Self {
        let extension = extension_of(catalog, &info).cloned();
        let is_own = info.is_resource && extension.is_none();
        let target = if is_own { Target::resolve(catalog, &info) } else { None };
        Self { info, options, target, extension }
    }

    /// What is authorized, and recorded.
    pub(in crate::apiserver) fn attributes(&self) -> Attributes<'_> {
        let Self { info, options, target, .. } = self;
        let Some(target) = target else { return info.attributes(options) };
        Attributes {
            path: &info.path,
            // Of a list the name that its selector requires.
            name: &info.name,
            field_selector: info.field_selector(options),
            ..target.attributes(&info.verb)
        }
    }
}

/// The extension API server that a request is passed on to: for everything in a group version that it serves, for the list of
/// its resources, and for its OpenAPI document.
fn extension_of<'a>(catalog: &'a Catalog, info: &RequestInfo) -> Option<&'a Arc<Extension>> {
    if catalog.extensions.is_empty() {
        return None;
    }
    if info.is_resource {
        return catalog.extension(&info.group, &info.version);
    }
    let segments: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    match segments[..] {
        ["apis", group, version] | ["openapi", "v3", "apis", group, version] => catalog.extension(group, version),
        _ => None,
    }
}
