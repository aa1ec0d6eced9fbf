//! Objects that are posted to a subresource to have something done, and not to be stored.

use axum::{body::Bytes, http::StatusCode, response::Response};
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, ApiRequest, Draft, Mutated, Mutation, Operation, RequestOptions, Scope, Target, WriteOptions,
        types::Gvk,
    },
    kinds::types,
};

/// Decodes what is posted, of a built-in kind, in its canonical form.
///
/// # Errors
/// When it cannot be read as this kind, or is about another object than the path.
pub(crate) fn read(
    request: &ApiRequest,
    target: &Target,
    gvk: &Gvk,
    options: &RequestOptions,
    body: &Bytes,
) -> Result<Value, ApiError> {
    let schema = types::built_in(&gvk.api_version(), &gvk.kind);
    let mut posted = request.read_as((gvk, &schema), options, body)?;
    schema.prune(&mut posted);
    let namespace = posted["metadata"]["namespace"].as_str().unwrap_or("");
    if !namespace.is_empty() && Some(namespace) != target.namespace.as_deref() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if let (Some(namespace), Some(metadata)) = (&target.namespace, posted["metadata"].as_object_mut()) {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    Ok(posted)
}

/// Changes the object of a subresource as the server itself: without its strategy and admission, and without an entry
/// in its managed fields.
///
/// # Errors
/// The refusal of `make`, or why nothing could be stored.
pub(crate) async fn change(
    request: &ApiRequest,
    target: &Target,
    options: WriteOptions<'_>,
    make: &(dyn Fn(&Value) -> Result<Draft, ApiError> + Send + Sync),
) -> Result<Mutated, ApiError> {
    let make = |old: Option<&Value>| make(old.unwrap_or(&Value::Null));
    let mutation = Mutation {
        target,
        operation: Operation::Update,
        scope: Scope::Server,
        options,
        manager: None,
        presented: None,
        make: &make,
    };
    request.mutate(mutation).await
}

/// The answer to what was done.
pub(crate) fn done(request: &ApiRequest) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    request.accept.write(StatusCode::CREATED, &status)
}
