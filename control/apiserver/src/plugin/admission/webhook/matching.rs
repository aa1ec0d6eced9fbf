//! Whether a webhook is called for a request, and what it is shown.
//!
//! Upstream: `ShouldCallHook` of `k8s.io/apiserver/pkg/admission/plugin/webhook/generic`.

use std::{sync::Arc, sync::OnceLock};

use serde_json::Value;
use windlass_apimachinery::selectors::LabelSelector;
use windlass_cel::ResourceAttributes;

use super::{caller::Caller, configuration::Webhook, review, rules::Subject};
use crate::{
    apiserver::{
        AdmissionAttributes, ApiError, Authorizers, Operation, Target,
        types::{Gvk, Version},
    },
    cel::{Matches, UserAuthorizer, Variables},
    store::{Key, Store},
};

/// The kinds that decide on requests are themselves decided on by nobody: else one could not be removed any more.
const EXEMPT: [&str; 6] = [
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Whether no webhook and no policy sees a request.
pub(crate) fn is_exempt(attributes: &AdmissionAttributes<'_>) -> bool {
    let version = &attributes.target.version;
    let is_configuration = version.group == "admissionregistration.k8s.io" && EXEMPT.contains(&version.plural.as_ref());
    // A deletion of what does not exist is refused all the same.
    is_configuration || (attributes.operation == Operation::Delete && attributes.old.is_none())
}

/// A request, as rules and selectors see it.
pub(super) struct Matched<'a> {
    attributes: &'a AdmissionAttributes<'a>,
    object: &'a Value,
    equivalents: OnceLock<Vec<Arc<Version>>>,
}

/// A webhook that is called, in which version it is shown the object, and what that is.
#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) webhook: Arc<Webhook>,
    pub(super) version: Arc<Version>,
    pub(super) shown: Shown,
}

impl Invocation {
    /// The kind of what the request sends: that of the subresource, if it has one of its own.
    pub(super) fn own_kind(target: &Target) -> &Gvk {
        target.served().and_then(|served| served.kind.as_ref()).unwrap_or(&target.version.gvk)
    }

    /// The kind that the webhook is shown.
    pub(super) fn kind<'a>(&'a self, target: &'a Target) -> &'a Gvk {
        target.served().and_then(|served| served.kind.as_ref()).unwrap_or(&self.version.gvk)
    }
}

/// What a webhook is shown.
#[derive(Debug)]
pub(super) struct Shown {
    /// The object as it would be; null for a deletion.
    pub(super) object: Value,
    /// The object as it is; null for a creation.
    pub(super) old: Value,
    /// The name of the object; empty while it has none.
    pub(super) name: String,
    /// The namespace that it is in, of a Namespace itself.
    pub(super) namespace: String,
}

/// The stored object, if the operation is about one.
pub(super) fn old_of<'a>(attributes: &AdmissionAttributes<'a>) -> Option<&'a Value> {
    attributes.old.filter(|_| matches!(attributes.operation, Operation::Update | Operation::Delete))
}

impl<'a> Matched<'a> {
    pub(super) fn new(attributes: &'a AdmissionAttributes<'a>, object: &'a Value) -> Self {
        Self { attributes, object, equivalents: OnceLock::new() }
    }

    fn name(&self) -> &str {
        let target = self.attributes.target;
        target.name.as_deref().or_else(|| self.object["metadata"]["name"].as_str()).unwrap_or("")
    }

    fn is_namespace(&self) -> bool {
        self.attributes.is_core("namespaces")
    }

    /// The namespace of the request; of a Namespace its name.
    fn namespace(&self) -> &str {
        if self.is_namespace() { self.name() } else { self.attributes.target.namespace.as_deref().unwrap_or("") }
    }

    /// Whether a webhook is called, and how.
    ///
    /// # Errors
    /// When a rule is for the request, and what its selectors are about cannot be read.
    pub(super) async fn invocation(
        &self,
        caller: &Caller,
        webhook: &Arc<Webhook>,
    ) -> Result<Option<Invocation>, ApiError> {
        let in_namespace = self.is_in_selected_namespace(&caller.store, &webhook.namespace_selector);
        if matches!(in_namespace, Ok(false)) || !self.is_selected(&webhook.object_selector) {
            return Ok(None);
        }
        let Some(version) = self.matched_version(webhook) else { return Ok(None) };
        in_namespace?;
        let shown = self.shown(&version).await?;
        let invocation = Invocation { webhook: Arc::clone(webhook), version, shown };
        let matches = webhook.conditions.is_empty() || self.meets_conditions(&caller.authorizers, &invocation)?;
        Ok(matches.then_some(invocation))
    }

    /// Whether the conditions of a webhook hold, which see the object as the webhook would.
    fn meets_conditions(&self, authorizers: &Authorizers, invocation: &Invocation) -> Result<bool, ApiError> {
        let (attributes, shown) = (self.attributes, &invocation.shown);
        let target = attributes.target;
        let variables = Variables {
            object: &shown.object,
            old: &shown.old,
            request: &review::request_of(attributes, invocation),
            authorizer: &UserAuthorizer { authorizers, user: attributes.user },
            resource: ResourceAttributes {
                group: target.version.group.to_string(),
                resource: target.version.plural.to_string(),
                subresource: target.subresource().to_owned(),
                namespace: shown.namespace.clone(),
                name: shown.name.clone(),
                ..ResourceAttributes::default()
            },
        };
        match invocation.webhook.conditions.matches(&variables) {
            Matches::Yes => Ok(true),
            Matches::No => Ok(false),
            Matches::Unknown(_) if invocation.webhook.ignores_failures => Ok(false),
            Matches::Unknown(why) => Err(ApiError::forbidden(&target.version, &shown.name, &why)),
        }
    }

    fn is_in_selected_namespace(&self, store: &Store, selector: &LabelSelector) -> Result<bool, ApiError> {
        // What is in no namespace is never left out.
        if selector.is_empty() || (self.namespace().is_empty() && !self.is_namespace()) {
            return Ok(true);
        }
        let writes = matches!(self.attributes.operation, Operation::Create | Operation::Update);
        if self.is_namespace() && self.attributes.target.subresource.is_none() && writes {
            return Ok(selector.matches(self.object));
        }
        let key = Key { namespace: String::new(), name: self.namespace().to_owned() };
        let namespace = store.get(store.resource("namespaces"), &key);
        let namespace = namespace.ok_or_else(|| ApiError::not_found_in("", "namespaces", &key.name))?;
        Ok(selector.matches(&namespace.value()))
    }

    /// Whether the object, as it is or as it would be, has the labels of a selector. What is no object has no labels, and is
    /// only in the selector that everything is in.
    fn is_selected(&self, selector: &LabelSelector) -> bool {
        if selector.is_empty() {
            return true;
        }
        let is_object = self.object.is_object() && self.attributes.operation != Operation::Connect;
        (is_object && selector.matches(self.object)) || old_of(self.attributes).is_some_and(|old| selector.matches(old))
    }

    /// The version in which a rule of the webhook names the resource: the request's own, or one of the same objects.
    fn matched_version(&self, webhook: &Webhook) -> Option<Arc<Version>> {
        let own = &self.attributes.target.version;
        if webhook.rules.iter().any(|rule| rule.matches(&self.subject(own))) {
            return Some(Arc::clone(own));
        }
        if !webhook.matches_equivalent {
            return None;
        }
        let equivalents = self.equivalents.get_or_init(|| self.equivalents());
        let matching =
            |rule| equivalents.iter().find(|version| super::rules::Rule::matches(rule, &self.subject(version)));
        webhook.rules.iter().find_map(matching).map(Arc::clone)
    }

    fn subject<'b>(&'b self, version: &'b Version) -> Subject<'b> {
        Subject {
            operation: self.attributes.operation,
            group: &version.gvk.group,
            version: &version.gvk.version,
            resource: &version.plural,
            subresource: self.attributes.target.subresource(),
            is_namespaced: !self.is_namespace() && !self.namespace().is_empty(),
        }
    }

    /// The other versions and resources under which the same objects are served. Upstream: `EquivalentResourceMapper`.
    fn equivalents(&self) -> Vec<Arc<Version>> {
        let target = self.attributes.target;
        let Some(id) = target.version.id() else { return Vec::new() };
        let is_other = |version: &&Arc<Version>| version.id() == Some(id) && !Arc::ptr_eq(version, &target.version);
        let has_subresource = |version: &&Arc<Version>| {
            target.subresource.as_deref().is_none_or(|name| version.subresource(name).is_some())
        };
        self.attributes.catalog.all().filter(is_other).filter(has_subresource).cloned().collect()
    }

    /// What a webhook is shown in a version.
    ///
    /// # Errors
    /// When the object cannot be had in the version.
    async fn shown(&self, version: &Version) -> Result<Shown, ApiError> {
        let target = self.attributes.target;
        let old = old_of(self.attributes).unwrap_or(&Value::Null);
        Ok(Shown {
            object: convert(self.object, target, &target.version, version).await?,
            old: convert(old, target, &target.version, version).await?,
            name: self.name().to_owned(),
            namespace: self.namespace().to_owned(),
        })
    }
}

/// An object in another version of its resource. What a subresource has of its own has one version.
pub(super) async fn convert(object: &Value, target: &Target, from: &Version, to: &Version) -> Result<Value, ApiError> {
    let mut converted = object.clone();
    let has_own_kind = target.served().is_some_and(|served| served.kind.is_some());
    if object.is_null() || has_own_kind {
        return Ok(converted);
    }
    if from.gvk != to.gvk && from.spec.schema.is_built_in() {
        from.convert_built_in(&mut converted, to)?;
    } else if from.gvk != to.gvk {
        converted = from.convert_between(object, &from.gvk.api_version(), &to.gvk.api_version()).await?;
    }
    converted["apiVersion"] = to.gvk.api_version().into();
    converted["kind"] = to.gvk.kind.as_ref().into();
    Ok(converted)
}
