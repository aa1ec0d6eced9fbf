//! Reads facts and asks the same questions of this crate.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value as Json};
use windlass_cel::{
    Activation, Authorizer, Budget, CompileError, Decision, DeclType, DeclTypes, Environment, EvalError, Opaque,
    PER_CALL_LIMIT, ResourceAttributes, SizeEstimator, Type, UnknownSizes, Value,
};

/// A line of the file of facts.
pub(crate) enum Row {
    Environment(String, Box<Setting>),
    Verdict(Fact),
}

/// A question and what upstream says.
pub(crate) struct Fact {
    pub(crate) environment: String,
    pub(crate) expression: String,
    pub(crate) verdict: BTreeMap<String, String>,
}

/// What questions are asked in.
pub(crate) struct Setting {
    environment: Environment,
    declared: Option<Arc<DeclType>>,
    variables: BTreeMap<String, Json>,
    optional_old_self: bool,
    limit: u64,
}

/// Allows to get, and fails for objects that are named error.
#[derive(Debug)]
struct Judge;

impl Authorizer for Judge {
    fn authorize(&self, request: &ResourceAttributes) -> Decision {
        let ResourceAttributes { verb, path, group, resource, subresource, namespace, name, .. } = request;
        let reason = [verb, path, group, resource, subresource, namespace, name].map(String::as_str).join("/");
        let error = (name == "error").then(|| "no answer".to_owned());
        Decision { allowed: error.is_none() && verb == "get", reason, error }
    }
}

/// Reads a line.
pub(crate) fn read(line: &str) -> Row {
    let mut line: Map<String, Json> = serde_json::from_str(line).expect("JSON");
    if let Some(Json::String(name)) = line.remove("environment") {
        return Row::Environment(name, Box::new(Setting::read(&line)));
    }
    let mut text = |name: &str| match line.remove(name) {
        Some(Json::String(text)) => text,
        _ => String::new(),
    };
    let (environment, expression) = (text("in"), text("expr"));
    let verdict = line.into_iter().map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect();
    Row::Verdict(Fact { environment, expression, verdict })
}

fn type_of(text: &str) -> Type {
    let text = text.trim();
    if let Some((name, inside)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        return match name {
            "list" => Type::list(type_of(inside)),
            "optional" => Type::optional(type_of(inside)),
            _ => {
                let (key, value) = inside.split_once(',').expect("a key and a value");
                Type::map(type_of(key), type_of(value))
            }
        };
    }
    match text {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "any" => Type::Any,
        "authorizer" => Type::object("kubernetes.authorization.Authorizer"),
        _ => Type::Dyn,
    }
}

impl Setting {
    fn read(line: &Map<String, Json>) -> Self {
        let mut environment = Environment::base();
        let mut variables = BTreeMap::new();
        let flag = |name: &str| line.get(name).and_then(Json::as_bool).unwrap_or(false);
        if flag("bindings") {
            environment = environment.with_bindings();
        }
        let optional_old_self = flag("optionalOldSelf");
        let mut declared = None;
        if let Some(schema) = line.get("schema") {
            let of = Arc::new(DeclType::of_schema(schema, false, "self_type").expect("a type"));
            let cel_type = of.cel_type().clone();
            let old = if optional_old_self { Type::optional(cel_type.clone()) } else { cel_type.clone() };
            environment = environment
                .with_variable("self", cel_type)
                .with_variable("oldSelf", old)
                .with_types(Arc::new(DeclTypes::new([Arc::clone(&of)])));
            declared = Some(of);
            for name in ["self", "oldSelf"] {
                if let Some(value) = line.get(name) {
                    variables.insert(name.to_owned(), value.clone());
                }
            }
        }
        for (name, variable) in line.get("variables").and_then(Json::as_object).into_iter().flatten() {
            let of = variable["type"].as_str().unwrap_or_default();
            environment = environment.with_variable(name, type_of(of));
            if of == "authorizer" {
                variables.insert(name.clone(), Json::from("authorizer"));
            } else if let Some(value) = variable.get("value") {
                variables.insert(name.clone(), value.clone());
            }
        }
        let limit = line.get("limit").and_then(Json::as_u64).unwrap_or(PER_CALL_LIMIT);
        Self { environment, declared, variables, optional_old_self, limit }
    }

    /// What this crate says of an expression.
    pub(crate) fn ask(&self, expression: &str) -> BTreeMap<String, String> {
        let mut verdict = BTreeMap::new();
        let mut note = |name: &str, text: String| {
            verdict.insert(name.to_owned(), text);
        };
        let compiled = match self.environment.compile(expression, &[]) {
            Ok(compiled) => compiled,
            Err(CompileError::Program(message)) => {
                note("program", message);
                return verdict;
            }
            Err(error) => {
                note("invalid", error.to_string());
                return verdict;
            }
        };
        note("type", compiled.result_type().to_string());
        let sizes: &dyn SizeEstimator = match &self.declared {
            Some(declared) => &**declared,
            None => &UnknownSizes,
        };
        let estimate = compiled.estimate(sizes);
        note("min", estimate.min.to_string());
        note("max", estimate.max.to_string());
        let mut budget = Budget::new(self.limit);
        match compiled.program().evaluate(self, &mut budget) {
            Ok(value) => note("value", value.to_string()),
            Err(error) => note("error", error.to_string()),
        }
        note("cost", budget.spent().to_string());
        verdict
    }
}

impl Activation for Setting {
    fn variable(&self, name: &str) -> Option<Result<Value<'_>, EvalError>> {
        if name == "authorizer" {
            return Some(Ok(Value::Opaque(Opaque::authorizer(&Judge))));
        }
        let is_optional = self.optional_old_self && name == "oldSelf";
        let Some(json) = self.variables.get(name) else { return is_optional.then(|| Ok(Value::none())) };
        let value = match &self.declared {
            Some(declared) => Value::of_type(json, declared),
            None => Ok(Value::from_json(json)),
        };
        Some(if is_optional { value.map(Value::some) } else { value })
    }
}
