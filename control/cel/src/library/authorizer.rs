//! Checks of permissions: upstream's `library/authz.go`.

use std::sync::Arc;

use windlass_apimachinery::names;

use super::{Row, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Decision, Opaque, Outcome, ResourceAttributes, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    member("path", "authorizer_path", "authorizer, string -> pathcheck", Cost::Accessor, path),
    member("group", "authorizer_group", "authorizer, string -> groupcheck", Cost::Accessor, group),
    member("serviceAccount", "authorizer_serviceaccount", "authorizer, string, string -> authorizer", Cost::Accessor, service_account),
    member("resource", "groupcheck_resource", "groupcheck, string -> resourcecheck", Cost::Accessor, resource),
    member("subresource", "resourcecheck_subresource", "resourcecheck, string -> resourcecheck", Cost::Accessor, |args| set(args, |request| &mut request.subresource)),
    member("namespace", "resourcecheck_namespace", "resourcecheck, string -> resourcecheck", Cost::Accessor, |args| set(args, |request| &mut request.namespace)),
    member("name", "resourcecheck_name", "resourcecheck, string -> resourcecheck", Cost::Accessor, |args| set(args, |request| &mut request.name)),
    member("fieldSelector", "authorizer_fieldselector", "resourcecheck, string -> resourcecheck", Cost::Selector, |args| set(args, |request| &mut request.field_selector)),
    member("labelSelector", "authorizer_labelselector", "resourcecheck, string -> resourcecheck", Cost::Selector, |args| set(args, |request| &mut request.label_selector)),
    member("check", "pathcheck_check", "pathcheck, string -> decision", Cost::AuthorizationCheck, check),
    member("check", "resourcecheck_check", "resourcecheck, string -> decision", Cost::AuthorizationCheck, check),
    member("errored", "decision_errored", "decision -> bool", Cost::Accessor, |args| of(args, |decision| Value::Bool(decision.error.is_some()))),
    member("error", "decision_error", "decision -> string", Cost::Accessor, |args| of(args, |decision| Value::text(decision.error.clone().unwrap_or_default()))),
    member("allowed", "decision_allowed", "decision -> bool", Cost::Accessor, |args| of(args, |decision| Value::Bool(decision.allowed))),
    member("reason", "decision_reason", "decision -> string", Cost::Accessor, |args| of(args, |decision| Value::text(decision.reason.clone()))),
];

fn path<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::Authorizer(asked)), Value::String(path)] = args else {
        return Err(EvalError::no_such_overload());
    };
    if path.trim().is_empty() {
        return Err(EvalError::new("path must not be empty"));
    }
    let mut check = asked.as_ref().clone();
    check.request.path = path.to_string();
    Ok(Value::Opaque(Opaque::PathCheck(Arc::new(check))))
}

fn group<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::Authorizer(asked)), Value::String(group)] = args else {
        return Err(EvalError::no_such_overload());
    };
    let mut check = asked.as_ref().clone();
    check.request.group = group.to_string();
    Ok(Value::Opaque(Opaque::GroupCheck(Arc::new(check))))
}

fn service_account<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::Authorizer(asked)), Value::String(namespace), Value::String(name)] = args else {
        return Err(EvalError::no_such_overload());
    };
    if names::subdomain(name).is_some() {
        return Err(EvalError::new("Invalid service account name"));
    }
    if names::label(namespace).is_some() {
        return Err(EvalError::new("Invalid service account namespace"));
    }
    let mut check = asked.as_ref().clone();
    check.request.service_account = Some((namespace.to_string(), name.to_string()));
    Ok(Value::Opaque(Opaque::Authorizer(Arc::new(check))))
}

fn resource<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::GroupCheck(asked)), Value::String(resource)] = args else {
        return Err(EvalError::no_such_overload());
    };
    if resource.trim().is_empty() {
        return Err(EvalError::new("resource must not be empty"));
    }
    let mut check = asked.as_ref().clone();
    check.request.resource = resource.to_string();
    Ok(Value::Opaque(Opaque::ResourceCheck(Arc::new(check))))
}

fn set<'a>(args: &[Value<'a>], field: fn(&mut ResourceAttributes) -> &mut String) -> Outcome<'a> {
    let [Value::Opaque(Opaque::ResourceCheck(asked)), Value::String(value)] = args else {
        return Err(EvalError::no_such_overload());
    };
    let mut check = asked.as_ref().clone();
    *field(&mut check.request) = value.to_string();
    Ok(Value::Opaque(Opaque::ResourceCheck(Arc::new(check))))
}

fn check<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::PathCheck(asked) | Opaque::ResourceCheck(asked)), Value::String(verb)] = args else {
        return Err(EvalError::no_such_overload());
    };
    let request = ResourceAttributes { verb: verb.to_string(), ..asked.request.clone() };
    Ok(Value::Opaque(Opaque::Decision(Arc::new(asked.authorizer.authorize(&request)))))
}

fn of<'a>(args: &[Value<'a>], part: fn(&Decision) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Decision(decision))] => Ok(part(decision)),
        _ => Err(EvalError::no_such_overload()),
    }
}
