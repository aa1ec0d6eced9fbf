//! CEL with what admission knows: the variables of conditions of webhooks, and of policies.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/cel`.

mod authorizer;
mod match_conditions;

use std::sync::LazyLock;

use windlass_cel::{CompileError, Environment, Program, Type, TypeProvider};

pub(crate) use authorizer::UserAuthorizer;
pub(crate) use match_conditions::{Conditions, Matches, Variables};

const REQUEST: &str = "kubernetes.AdmissionRequest";
const NAMESPACE: &str = "kubernetes.Namespace";
/// The types of the variables `authorizer` and `authorizer.requestResource`.
const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

/// What conditions of webhooks can name.
static CONDITIONS: LazyLock<Environment> = LazyLock::new(|| {
    Environment::base()
        .with_types(std::sync::Arc::new(AdmissionTypes))
        .with_variable("object", Type::Dyn)
        .with_variable("oldObject", Type::Dyn)
        .with_variable("namespaceObject", Type::object(NAMESPACE))
        .with_variable("request", Type::object(REQUEST))
        .with_variable("authorizer", Type::object(AUTHORIZER))
        .with_variable("authorizer.requestResource", Type::object(RESOURCE_CHECK))
});

/// The same of policies that have parameters.
static CONDITIONS_WITH_PARAMS: LazyLock<Environment> =
    LazyLock::new(|| CONDITIONS.clone().with_variable("params", Type::Dyn));

/// Compiles a condition of a webhook or policy, which may have parameters.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub(crate) fn compile_condition(expression: &str, has_params: bool) -> Result<Program, String> {
    let environment = if has_params { &CONDITIONS_WITH_PARAMS } else { &CONDITIONS };
    match environment.compile(expression, &[Type::Bool]) {
        Ok(compiled) => Ok(compiled.into_program()),
        Err(CompileError::Invalid(why)) => Err(format!("compilation failed: {why}")),
        Err(CompileError::WrongType { wanted, found }) => Err(format!("must evaluate to {wanted} but got {found}")),
        Err(CompileError::Program(why)) => Err(format!("program instantiation failed: {why}")),
    }
}

/// The types of `request` and `namespaceObject`. Upstream: `BuildRequestType` and `BuildNamespaceType`.
#[derive(Debug)]
struct AdmissionTypes;

/// The fields of a type, each with its type.
type FieldTypes = &'static [(&'static str, fn() -> Type)];

fn texts() -> Type {
    Type::list(Type::String)
}

impl AdmissionTypes {
    /// The fields of a type.
    fn fields(name: &str) -> Option<FieldTypes> {
        const TEXT: fn() -> Type = || Type::String;
        const INT: fn() -> Type = || Type::Int;
        const TIME: fn() -> Type = || Type::Timestamp;
        const KIND: fn() -> Type = || Type::object("kubernetes.GroupVersionKind");
        const RESOURCE: fn() -> Type = || Type::object("kubernetes.GroupVersionResource");
        const LABELS: fn() -> Type = || Type::map(Type::String, Type::String);
        Some(match name {
            REQUEST => &[
                ("kind", KIND),
                ("resource", RESOURCE),
                ("subResource", TEXT),
                ("requestKind", KIND),
                ("requestResource", RESOURCE),
                ("requestSubResource", TEXT),
                ("name", TEXT),
                ("namespace", TEXT),
                ("operation", TEXT),
                ("userInfo", || Type::object("kubernetes.UserInfo")),
                ("dryRun", || Type::Bool),
                ("options", || Type::Dyn),
            ],
            "kubernetes.GroupVersionKind" => &[("group", TEXT), ("version", TEXT), ("kind", TEXT)],
            "kubernetes.GroupVersionResource" => &[("group", TEXT), ("version", TEXT), ("resource", TEXT)],
            "kubernetes.UserInfo" => {
                &[("username", TEXT), ("uid", TEXT), ("groups", texts), ("extra", || Type::map(Type::String, texts()))]
            }
            NAMESPACE => &[
                ("metadata", || Type::object("kubernetes.NamespaceMetadata")),
                ("spec", || Type::object("kubernetes.NamespaceSpec")),
                ("status", || Type::object("kubernetes.NamespaceStatus")),
            ],
            "kubernetes.NamespaceMetadata" => &[
                ("name", TEXT),
                ("generateName", TEXT),
                ("namespace", TEXT),
                ("labels", LABELS),
                ("annotations", LABELS),
                ("UID", TEXT),
                ("creationTimestamp", TIME),
                ("deletionGracePeriodSeconds", INT),
                ("deletionTimestamp", TIME),
                ("generation", INT),
                ("resourceVersion", TEXT),
                ("finalizers", texts),
            ],
            "kubernetes.NamespaceSpec" => &[("finalizers", texts)],
            "kubernetes.NamespaceStatus" => {
                &[("conditions", || Type::list(Type::object("kubernetes.NamespaceCondition"))), ("phase", TEXT)]
            }
            "kubernetes.NamespaceCondition" => {
                &[("status", TEXT), ("type", TEXT), ("lastTransitionTime", TIME), ("message", TEXT), ("reason", TEXT)]
            }
            _ => return None,
        })
    }
}

impl TypeProvider for AdmissionTypes {
    fn find_type(&self, name: &str) -> Option<Type> {
        Self::fields(name).map(|_| Type::object(name))
    }

    fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        let (_, of) = Self::fields(type_name)?.iter().find(|(name, _)| *name == field)?;
        Some(of())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_what_admission_knows() {
        for expression in [
            "object.metadata.name != 'skip-me'",
            "request.userInfo.groups.exists(group, group == 'system:nodes')",
            "!(request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases')",
            "authorizer.group('').resource('pods').namespace('default').check('create').allowed()",
            "authorizer.requestResource.check('breakglass').allowed()",
            "namespaceObject.metadata.name == 'default'",
            "has(object.spec) && request.dryRun && request.options.fieldManager == 'me'",
        ] {
            assert_eq!(compile_condition(expression, false).map(drop), Ok(()), "{expression}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_condition_is_said_in_upstreams_words() {
        let error = |expression: &str| compile_condition(expression, false).map(drop).unwrap_err();
        let unknown = "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')";
        assert!(error("params.a").starts_with(unknown), "{}", error("params.a"));
        let field = "compilation failed: ERROR: <input>:1:8: undefined field 'uid'";
        assert!(error("request.uid == ''").starts_with(field), "{}", error("request.uid == ''"));
        assert_eq!(error("1"), "must evaluate to bool but got int");
        assert!(compile_condition("params.a == 1", true).is_ok());
    }
}
