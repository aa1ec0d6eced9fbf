//! The runtime that Docker runs a pod's sandbox with: the handler of its RuntimeClass. Containers get the runtime of
//! their sandbox, whatever has become of the class since, as with a CRI.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::PodSpec, node::v1::RuntimeClass};
use kube::Api;

use super::{context::PodContext, outcome::StepError};
use crate::{node_authorizer::retry_forbidden, pods::lifecycle::reasons};

/// A RuntimeClass and its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimeHandler {
    pub(crate) class: String,
    pub(crate) handler: String,
}

/// All runtime classes; `None` before they were listed once.
pub(crate) type RuntimeHandlers = Option<Arc<Vec<RuntimeHandler>>>;

/// The handler of a class among those that are known.
fn known(all: &RuntimeHandlers, class: &str) -> Option<String> {
    all.iter().flat_map(|all| all.iter()).find(|known| known.class == class).map(|known| known.handler.clone())
}

/// Docker's runtime for a pod's sandbox; `None` for Docker's default. A class that the watch has not delivered yet is
/// read from the API: it may have just been created.
pub(super) async fn runtime(context: &PodContext, spec: &PodSpec) -> Result<Option<String>, StepError> {
    let Some(class) = spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
    let failed = |why: String| StepError::new(reasons::CREATE_POD_SANDBOX_ERROR, why);
    let cached = known(&context.runtime_handlers.borrow(), class);
    let handler = match cached {
        Some(handler) => handler,
        None => {
            let api: Api<RuntimeClass> = Api::all(context.node.client.clone());
            let found = retry_forbidden(|| api.get_opt(class)).await;
            let found = found.map_err(|e| failed(format!("failed to get RuntimeClass {class:?}: {e}")))?;
            found.ok_or_else(|| failed(format!("RuntimeClass {class:?} not found")))?.handler
        }
    };
    Ok(Some(handler).filter(|handler| !handler.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_known_once_they_were_listed() {
        let handler = |class: &str, handler: &str| RuntimeHandler { class: class.into(), handler: handler.into() };
        let all = Some(Arc::new(vec![handler("a", "runsc"), handler("b", "kata")]));
        assert_eq!(known(&all, "b").as_deref(), Some("kata"));
        assert_eq!((known(&all, "c"), known(&None, "a")), (None, None));
    }
}
