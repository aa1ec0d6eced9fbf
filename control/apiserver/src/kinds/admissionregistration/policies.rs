//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set_pointer};

use super::{json_path, rules};
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    cel::{Compiler, Wanted},
    kinds::{
        shared::{
            cells::text,
            conditions,
            field::Field,
            internal_version::{Internal, Table},
            tables::{AGE, column, count, named},
        },
        types,
    },
};

const NEITHER: &str = "validations or auditAnnotations must contain at least one item";
const MAX_ANNOTATIONS: usize = 20;
const MAX_VALUE_BYTES: usize = 5 * 1024;

/// The resource of ValidatingAdmissionPolicies.
pub(crate) fn validating() -> Definition {
    let mut definition = definition("validatingadmissionpolicies", "ValidatingAdmissionPolicy", false);
    definition.versions.iter_mut().for_each(|version| version.subresources = vec![Subresource::status()]);
    definition
}

/// The resource of MutatingAdmissionPolicies.
pub(crate) fn mutating() -> Definition {
    definition("mutatingadmissionpolicies", "MutatingAdmissionPolicy", true)
}

fn definition(plural: &'static str, kind: &'static str, mutating: bool) -> Definition {
    let mut resource = Resource::new("admissionregistration.k8s.io", plural, kind, Policy { mutating });
    resource.categories = vec!["api-extensions".into()];
    resource.namespaced = false;
    resource.allow_unconditional_update = false;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("admissionregistration.k8s.io/v1", kind));
    let steps = if mutating { count("Mutations", "Its mutations.") } else { count("Validations", "Its validations.") };
    let columns = vec![steps, column("ParamKind", "The kind of its parameters."), AGE];
    v1.table = named(columns, |object, age| {
        let spec = &object["spec"];
        let steps = [&spec["validations"], &spec["mutations"]].into_iter().find_map(Value::as_array);
        vec![json!(steps.map_or(0, Vec::len)), json!(param_kind(&spec["paramKind"])), json!(age)]
    });
    Definition::single(resource, v1)
}

fn param_kind(kind: &Value) -> String {
    if !kind.is_object() {
        return "<unset>".to_owned();
    }
    format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"]))
}

#[derive(Debug)]
struct Policy {
    mutating: bool,
}

impl Strategy for Policy {
    fn validation_takes_long(&self, _: Option<&Value>) -> bool {
        true
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        super::name_warning(new).into_iter().collect()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set_pointer(spec, "failurePolicy", json!("Fail"));
        if let Some(resources) = spec.get_mut("matchConstraints").and_then(Value::as_object_mut) {
            rules::default_match(resources);
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        self.validate_against(object, None, errors);
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let root = Field::root(object);
        let spec = root.at("spec");
        let failure = spec.at("failurePolicy");
        if failure.is_set() {
            failure.one_of(&["Fail", "Ignore"], errors)
        } else {
            failure.required("", errors)
        }
        if spec.at("paramKind").is_set() {
            validate_param_kind(&spec.at("paramKind"), errors);
        }
        let matched = spec.at("matchConstraints");
        if matched.is_set() {
            rules::match_resources(&matched, errors);
            if matched.at("resourceRules").is_empty() {
                matched.at("resourceRules").required("", errors);
            }
            if self.mutating {
                rules::mutable(&matched, errors);
            }
        } else {
            matched.required("", errors);
        }
        let has_params = spec.at("paramKind").is_set();
        // What could be written once and has not changed since stays.
        let is_unchanged = |field: &str| old.is_some_and(|old| old["spec"][field] == spec.value[field]);
        if !(is_unchanged("paramKind") && is_unchanged("matchConditions")) {
            rules::match_conditions(&spec.at("matchConditions"), has_params, errors);
        }
        let mut compiler = Compiler::new(has_params, self.mutating || !spec.at("variables").is_empty());
        for variable in spec.at("variables").items() {
            validate_variable(&variable, &mut compiler, errors);
        }
        if self.mutating {
            mutations(&spec, &compiler, errors);
        } else {
            validations(&spec, &compiler, errors);
            audit_annotations(&spec, root.below("metadata.name").text(), &compiler, errors);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        for warning in Field::root(new).below("status.typeChecking.expressionWarnings").items() {
            for field in ["warning", "fieldRef"].map(|field| warning.at(field)) {
                if field.text().trim().is_empty() {
                    field.required("", errors);
                } else if field.path.name() == "fieldRef" {
                    let path = field.text().trim();
                    let problem = json_path::problem(path).map(|why| format!("invalid JSONPath: {why}"));
                    errors.unless(&field.path, path, problem);
                }
            }
        }
        conditions::validate(&Field::root(new).below("status.conditions"), errors);
    }
}

fn validate_param_kind(kind: &Field<'_>, errors: &mut Errors) {
    let version = kind.at("apiVersion");
    let parts: Vec<&str> = version.text().split('/').collect();
    match parts[..] {
        [""] => version.required("", errors),
        [name] => version_name(&version, name, errors),
        [group, name] => {
            if !group.is_empty() {
                errors.unless(&version.path, group, names::subdomain(group));
            }
            version_name(&version, name, errors);
        }
        _ => version.invalid(&format!("unexpected GroupVersion string: {}", version.text()), errors),
    }
    let kind = kind.at("kind");
    if kind.text().is_empty() {
        kind.required("", errors);
    } else if let Some(why) = names::dns1035_label(&kind.text().to_lowercase()) {
        kind.invalid(&format!("may have mixed case, but should otherwise match: {why}"), errors);
    }
}

fn version_name(version: &Field<'_>, name: &str, errors: &mut Errors) {
    if name.is_empty() {
        version.invalid("version must be specified", errors);
    } else {
        errors.unless(&version.path, name, names::dns1035_label(name));
    }
}

/// Whether a name can stand in an expression.
fn is_identifier(name: &str) -> bool {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(fine) && !RESERVED.contains(&name)
}

fn validate_variable(variable: &Field<'_>, compiler: &mut Compiler, errors: &mut Errors) {
    let (name, expression) = (variable.at("name"), variable.at("expression"));
    if name.text().trim().is_empty() {
        name.required("name is not specified", errors);
    } else if !is_identifier(name.text()) {
        name.invalid("must be a valid CEL identifier", errors);
    }
    if expression.text().trim().is_empty() {
        expression.required("expression is not specified", errors);
    } else if let Err(why) = compiler.add_variable(name.text(), expression.text()) {
        expression.invalid(&why, errors);
    }
}

/// Refuses an expression that does not compile. `text` is the part of it that is compiled, which the error shows.
fn compiles(expression: &Field<'_>, text: &str, wanted: Wanted, compiler: &Compiler, errors: &mut Errors) {
    if let Err(why) = compiler.compile(text, wanted) {
        errors.invalid_text(&expression.path, text, &why);
    }
}

fn validations(spec: &Field<'_>, compiler: &Compiler, errors: &mut Errors) {
    let (all, annotations) = (spec.at("validations"), spec.at("auditAnnotations"));
    if all.is_empty() && annotations.is_empty() {
        all.required(NEITHER, errors);
        annotations.required(NEITHER, errors);
        return;
    }
    for each in all.items() {
        let (expression, message) = (each.at("expression"), each.at("message"));
        if expression.text().trim().is_empty() {
            expression.required("expression is not specified", errors);
        } else {
            compiles(&expression, expression.text(), Wanted::Bool, compiler, errors);
        }
        let computed = each.at("messageExpression");
        if !computed.text().trim().is_empty() {
            compiles(&computed, computed.text(), Wanted::Message, compiler, errors);
        } else if !computed.text().is_empty() {
            computed.invalid("must be non-empty if specified", errors);
        }
        let trimmed = message.text().trim();
        if !message.text().is_empty() && trimmed.is_empty() {
            message.invalid("must be non-empty if specified", errors);
        } else if trimmed.contains('\n') {
            message.invalid("must not contain line breaks", errors);
        }
        each.at("reason").optional_one_of(&["Forbidden", "Invalid", "RequestEntityTooLarge"], errors);
    }
}

/// Upstream's type of what a policy adds to the audit log.
const AUDIT_ANNOTATION: Table = "\
Key key \"\"
ValueExpression valueExpression \"\"
";

fn audit_annotations(spec: &Field<'_>, policy: &str, compiler: &Compiler, errors: &mut Errors) {
    let annotations = spec.at("auditAnnotations");
    if annotations.len() > MAX_ANNOTATIONS {
        let shown = Internal::list(AUDIT_ANNOTATION, annotations.value).text();
        let why = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
        annotations.invalid_as(&shown, &why, errors);
    }
    let mut seen = BTreeSet::new();
    for each in annotations.items() {
        let (key, value) = (each.at("key"), each.at("valueExpression"));
        if policy.is_empty() {
            key.invalid("requires metadata.name be non-empty", errors);
        } else {
            let whole = format!("{policy}/{}", key.text());
            errors.unless(&key.path, &whole, names::qualified(&whole));
        }
        let trimmed = value.text().trim();
        if trimmed.is_empty() {
            value.required("valueExpression is not specified", errors);
        } else if trimmed.len() > MAX_VALUE_BYTES {
            value.required(&format!("must not exceed {MAX_VALUE_BYTES} bytes in length"), errors);
        } else if let Err(why) = compiler.compile(trimmed, Wanted::Annotation) {
            value.invalid(&why, errors);
        }
        if !seen.insert(key.text()) {
            key.duplicate(errors);
        }
    }
}

fn mutations(spec: &Field<'_>, compiler: &Compiler, errors: &mut Errors) {
    let all = spec.at("mutations");
    if all.is_empty() {
        all.required("mutations must contain at least one item", errors);
    }
    for mutation in all.items() {
        let (applied, patched) = (mutation.at("applyConfiguration"), mutation.at("jsonPatch"));
        let kind = mutation.at("patchType");
        let mut one = |wanted: &Field<'_>, other: &Field<'_>, kind: &str, makes: Wanted| {
            let expression = wanted.at("expression");
            let text = expression.text().trim();
            if !wanted.is_set() {
                wanted.required(&format!("must be specified when patchType is {kind}"), errors);
            } else if text.is_empty() {
                expression.required("", errors);
            } else {
                compiles(&expression, text, makes, compiler, errors);
            }
            if other.is_set() {
                let why = format!("must not be specified when patchType is {kind}");
                let name = other.path.name();
                errors.invalid_text(&other.path, &format!("{{{name}}}"), &why);
            }
        };
        match kind.text() {
            "ApplyConfiguration" => one(&applied, &patched, "ApplyConfiguration", Wanted::Object),
            "JSONPatch" => one(&patched, &applied, "JSONPatch", Wanted::JsonPatch),
            "" => kind.required("", errors),
            _ => kind.one_of(&["ApplyConfiguration", "JSONPatch"], errors),
        }
    }
    spec.at("reinvocationPolicy").required_one_of(&["IfNeeded", "Never"], errors);
}
