//! On which threads expressions are evaluated: nearly all on those that answer requests, and what takes long apart from them.

use serde_json::Value;
use windlass_apimachinery::effort::Effort;
use windlass_cel::ResourceAttributes;

use super::{
    activation::{EffortCell, Inputs},
    authorizer::UserAuthorizer,
};
use crate::apiserver::{
    ApiError, Authorizers, User,
    pipeline::long_work::{SERVING_EFFORT, apart},
};

/// Evaluates what `work` does with expressions of an owner, once more on a thread for long work if it takes long.
///
/// # Errors
/// When there is too much long work.
pub(crate) async fn evaluate<T: Send + 'static>(
    owner: &str,
    inputs: &Inputs<'_>,
    work: impl Fn(&Inputs<'_>) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let effort = EffortCell::new(Effort::new(SERVING_EFFORT));
    let found = work(&Inputs { effort: Some(&effort), resource: inputs.resource.clone(), ..*inputs });
    if !effort.is_exceeded() {
        return Ok(found);
    }
    let owned = Owned::of(inputs);
    apart(owner, move || owned.lend(work)).await
}

/// What expressions are about, as another thread has it.
struct Owned {
    object: Value,
    old: Value,
    request: Value,
    namespace: Value,
    params: Value,
    authorizer: Option<(Authorizers, User)>,
    resource: ResourceAttributes,
}

impl Owned {
    fn of(inputs: &Inputs<'_>) -> Self {
        Self {
            object: inputs.object.clone(),
            old: inputs.old.clone(),
            request: inputs.request.clone(),
            namespace: inputs.namespace.clone(),
            params: inputs.params.clone(),
            authorizer: inputs.authorizer.map(|of| (of.authorizers.clone(), of.user.clone())),
            resource: inputs.resource.clone(),
        }
    }

    fn lend<T>(&self, work: impl Fn(&Inputs<'_>) -> T) -> T {
        let authorizer = self.authorizer.as_ref().map(|(authorizers, user)| UserAuthorizer { authorizers, user });
        work(&Inputs {
            object: &self.object,
            old: &self.old,
            request: &self.request,
            namespace: &self.namespace,
            params: &self.params,
            authorizer: authorizer.as_ref(),
            resource: self.resource.clone(),
            effort: None,
        })
    }
}
