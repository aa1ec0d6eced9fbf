//! The variable `authorizer`: what the user of a request, or a service account, may do.

use windlass_cel::{Authorizer, Decision, ResourceAttributes};

use crate::apiserver::{Attributes, Authorizers, User};

/// The authorizers with the user that they are asked about.
#[derive(Debug)]
pub(crate) struct UserAuthorizer<'a> {
    pub(crate) authorizers: &'a Authorizers,
    pub(crate) user: &'a User,
}

impl Authorizer for UserAuthorizer<'_> {
    fn authorize(&self, request: &ResourceAttributes) -> Decision {
        let account = request.service_account.as_ref().map(|(namespace, name)| User::service_account(namespace, name));
        let is_resource = request.path.is_empty();
        let asked = Attributes {
            verb: &request.verb,
            is_resource,
            path: &request.path,
            group: &request.group,
            version: if is_resource { "*" } else { "" },
            resource: &request.resource,
            subresource: &request.subresource,
            namespace: &request.namespace,
            name: &request.name,
            field_selector: &request.field_selector,
        };
        let user = account.as_ref().unwrap_or(self.user);
        match self.authorizers.authorize(user, &asked) {
            Ok(()) => Decision { allowed: true, reason: self.authorizers.reason(user, &asked), error: None },
            Err(reason) => Decision { allowed: false, reason, error: None },
        }
    }
}
