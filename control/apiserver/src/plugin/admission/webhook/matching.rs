//! Whether a webhook is called for a request, and what it is shown.
//!
//! Upstream: `ShouldCallHook` of `k8s.io/apiserver/pkg/admission/plugin/webhook/generic`.

use std::sync::Arc;

use serde_json::Value;
use windlass_cel::ResourceAttributes;

use super::{caller::Caller, configuration::Webhook, review};
use crate::{
    apiserver::{
        AdmissionAttributes, ApiError, Authorizers, Target,
        types::{Gvk, Version},
    },
    cel::{Conditions, Deferred, Inputs, Matches, UserAuthorizer, evaluate},
    plugin::admission::predicates::{Request, old_of},
};

/// A request, as webhooks and policies see it.
pub(in crate::plugin::admission) struct Matched<'a>(Request<'a>);

/// A webhook that is called, in which version it is shown the object, and what that is.
#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) webhook: Arc<Webhook>,
    pub(super) version: Arc<Version>,
    pub(super) shown: Shown,
}

/// The kind of what the request sends, in a version of its resource: that of the subresource, if it has one of its own.
pub(in crate::plugin::admission) fn kind_in<'a>(target: &'a Target, version: &'a Version) -> &'a Gvk {
    target.served().and_then(|served| served.kind.as_ref()).unwrap_or(&version.gvk)
}

/// What a webhook or policy is shown.
#[derive(Debug)]
pub(in crate::plugin::admission) struct Shown {
    /// The object as it would be; null for a deletion.
    pub(in crate::plugin::admission) object: Value,
    /// The object as it is; null for a creation.
    pub(in crate::plugin::admission) old: Value,
    /// The name of the object; empty while it has none.
    pub(in crate::plugin::admission) name: String,
    /// The namespace that it is in, of a Namespace itself.
    pub(in crate::plugin::admission) namespace: String,
}

impl Shown {
    /// What the request itself asks for, as expressions check it.
    pub(in crate::plugin::admission) fn resource(&self, target: &Target) -> ResourceAttributes {
        ResourceAttributes {
            group: target.version.group.to_string(),
            resource: target.version.plural.to_string(),
            subresource: target.subresource().to_owned(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            ..ResourceAttributes::default()
        }
    }
}

impl<'a> Matched<'a> {
    pub(in crate::plugin::admission) fn new(attributes: &'a AdmissionAttributes<'a>, object: &'a Value) -> Self {
        Self(Request::new(attributes, object))
    }

    pub(in crate::plugin::admission) fn request(&self) -> &Request<'a> {
        &self.0
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
        let Some(version) = self.0.version_for(&caller.store, &webhook.criteria)? else { return Ok(None) };
        let shown = self.shown(&version).await?;
        let invocation = Invocation { webhook: Arc::clone(webhook), version, shown };
        let matches = match &webhook.conditions {
            Some(conditions) => self.meets(conditions, &caller.authorizers, &invocation).await?,
            None => true,
        };
        Ok(matches.then_some(invocation))
    }

    /// Whether the conditions of a webhook hold, which see the object as the webhook would.
    async fn meets(
        &self,
        conditions: &Deferred<Conditions>,
        authorizers: &Authorizers,
        invocation: &Invocation,
    ) -> Result<bool, ApiError> {
        let (attributes, shown) = (self.0.attributes, &invocation.shown);
        let target = attributes.target;
        let inputs = Inputs {
            object: &shown.object,
            old: &shown.old,
            request: &review::request_of(attributes, &invocation.version, shown),
            namespace: &Value::Null,
            params: &Value::Null,
            authorizer: Some(&UserAuthorizer { authorizers, user: attributes.user }),
            resource: shown.resource(target),
            effort: None,
        };
        let compiled = conditions.get().await?;
        match evaluate(conditions.owner(), &inputs, move |inputs| compiled.matches(inputs, None)).await? {
            Matches::Yes => Ok(true),
            Matches::No => Ok(false),
            Matches::Unknown(_) if invocation.webhook.ignores_failures => Ok(false),
            Matches::Unknown(why) => Err(ApiError::forbidden(&target.version, &shown.name, &why)),
        }
    }

    /// What a webhook is shown in a version.
    ///
    /// # Errors
    /// When the object cannot be had in the version.
    pub(in crate::plugin::admission) async fn shown(&self, version: &Version) -> Result<Shown, ApiError> {
        let target = self.0.attributes.target;
        let old = old_of(self.0.attributes).unwrap_or(&Value::Null);
        Ok(Shown {
            object: convert(self.0.object, target, &target.version, version).await?,
            old: convert(old, target, &target.version, version).await?,
            name: self.0.name().to_owned(),
            namespace: self.0.namespace().to_owned(),
        })
    }
}

/// An object in another version of its resource. What a subresource has of its own has one version.
pub(in crate::plugin::admission) async fn convert(
    object: &Value,
    target: &Target,
    from: &Version,
    to: &Version,
) -> Result<Value, ApiError> {
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
