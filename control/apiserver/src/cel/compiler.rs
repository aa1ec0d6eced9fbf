//! Compiles expressions of webhooks and policies. Variables of a policy are compiled in their order, each of which can name
//! those before it.
//!
//! Upstream: `compile.go` and `composition.go`.

use std::sync::{Arc, LazyLock};

use serde_json::Value;
use windlass_cel::{CompileError, Compiled, DeclType, DeclTypes, Environment, Program, Type};

use super::{
    activation::Expression,
    types::{AdmissionTypes, JSON_PATCH, NAMESPACE, OBJECT, PatchTypes, REQUEST, VARIABLES, VariableTypes},
};

/// The types of the variables `authorizer` and `authorizer.requestResource`.
const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

/// What all expressions can name.
static BASE: LazyLock<Environment> = LazyLock::new(|| {
    Environment::base()
        .with_types(Arc::new(AdmissionTypes))
        .with_variable("object", Type::Dyn)
        .with_variable("oldObject", Type::Dyn)
        .with_variable("namespaceObject", Type::object(NAMESPACE))
        .with_variable("request", Type::object(REQUEST))
});

/// What conditions of webhooks can name.
static CONDITIONS: LazyLock<Environment> = LazyLock::new(|| with_authorizer(BASE.clone()));

/// The same of policies that have parameters.
static CONDITIONS_WITH_PARAMS: LazyLock<Environment> =
    LazyLock::new(|| CONDITIONS.clone().with_variable("params", Type::Dyn));

fn with_authorizer(environment: Environment) -> Environment {
    environment
        .with_variable("authorizer", Type::object(AUTHORIZER))
        .with_variable("authorizer.requestResource", Type::object(RESOURCE_CHECK))
}

/// What an expression is for, which says what it can name and what its value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A condition or validation.
    Bool,
    /// A message, which cannot ask for permissions.
    Message,
    /// The value of an annotation of the audit log.
    Annotation,
    /// A variable.
    Any,
    /// An apply configuration.
    Object,
    /// The operations of a JSON patch.
    JsonPatch,
}

impl Wanted {
    fn types(self) -> Vec<Type> {
        match self {
            Self::Bool => vec![Type::Bool],
            Self::Message => vec![Type::String],
            Self::Annotation => vec![Type::String, Type::Null],
            Self::Any => Vec::new(),
            Self::Object => vec![Type::object(OBJECT)],
            Self::JsonPatch => vec![Type::list(Type::object(JSON_PATCH))],
        }
    }
}

/// Compiles an expression, in upstream's words for what is wrong with it.
fn compile(environment: &Environment, expression: &str, wanted: Wanted) -> Result<Compiled, String> {
    let types = wanted.types();
    environment.compile(expression, &types).map_err(|error| match error {
        CompileError::Invalid(why) => format!("compilation failed: {why}"),
        CompileError::WrongType { found, .. } => {
            let wanted: Vec<String> = types.iter().map(Type::declared).collect();
            let found = found.declared();
            match &wanted[..] {
                [one] => format!("must evaluate to {one} but got {found}"),
                several => format!("must evaluate to one of [{}] but got {found}", several.join(" ")),
            }
        }
        CompileError::Program(why) => format!("program instantiation failed: {why}"),
    })
}

/// Compiles a condition of a webhook or policy, which may have parameters.
///
/// # Errors
/// What is wrong with it, in upstream's words.
pub(crate) fn compile_condition(expression: &str, has_params: bool) -> Result<Program, String> {
    let environment = if has_params { &CONDITIONS_WITH_PARAMS } else { &CONDITIONS };
    compile(environment, expression, Wanted::Bool).map(Compiled::into_program)
}

/// A variable of a policy.
#[derive(Debug)]
struct Variable {
    name: String,
    /// Or why it cannot be evaluated.
    program: Result<Program, String>,
}

/// The variables of a policy, as they are evaluated. Upstream: `compositionState`.
#[derive(Debug, Default)]
pub(crate) struct Composition(Vec<Variable>);

impl Composition {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The last variable of a name, and its place.
    pub(super) fn find(&self, name: &str) -> Option<(usize, &Result<Program, String>)> {
        let at = self.0.iter().rposition(|variable| variable.name == name)?;
        self.0.get(at).map(|variable| (at, &variable.program))
    }
}

/// Compiles the expressions of one policy. Upstream: `CompositedCompiler`.
#[derive(Debug)]
pub(crate) struct Compiler {
    types: Arc<VariableTypes>,
    /// For messages.
    plain: Environment,
    usual: Environment,
    /// For mutations.
    patches: Environment,
    composition: Composition,
}

impl Compiler {
    /// For a policy that may have parameters and variables.
    pub(crate) fn new(has_params: bool, has_variables: bool) -> Self {
        let types: Arc<VariableTypes> = Arc::default();
        let mut plain = BASE.clone();
        if has_params {
            plain = plain.with_variable("params", Type::Dyn);
        }
        if has_variables {
            plain = plain.with_types(Arc::clone(&types) as _).with_variable("variables", Type::object(VARIABLES));
        }
        let usual = with_authorizer(plain.clone());
        let patches = usual.clone().with_types(Arc::new(PatchTypes)).with_json_patch();
        Self { types, plain, usual, patches, composition: Composition::default() }
    }

    /// For expressions that are compared with the types of what they are about; of none anything is taken. Upstream:
    /// `buildEnvSet` of `policy/validating/typechecking.go`.
    pub(crate) fn with_types(object: Option<&Arc<DeclType>>, params: Option<Option<&Arc<DeclType>>>) -> Self {
        let declared = DeclTypes::new(object.into_iter().chain(params.flatten()).cloned());
        let type_of = |of: Option<&Arc<DeclType>>| of.map_or(Type::Dyn, |of| of.cel_type().clone());
        let types: Arc<VariableTypes> = Arc::default();
        let mut environment = BASE
            .clone()
            .with_types(Arc::new(declared))
            .with_types(Arc::clone(&types) as _)
            .with_variable("object", type_of(object))
            .with_variable("oldObject", type_of(object))
            .with_variable("variables", Type::object(VARIABLES))
            .with_variable("authorizer", Type::object(AUTHORIZER));
        if let Some(params) = params {
            environment = environment.with_variable("params", type_of(params));
        }
        let [plain, usual, patches] = [environment.clone(), environment.clone(), environment];
        Self { types, plain, usual, patches, composition: Composition::default() }
    }

    /// Compares an expression with the types of what it names.
    ///
    /// # Errors
    /// What does not fit, in cel-go's words.
    pub(crate) fn check_types(&self, expression: &str) -> Result<(), String> {
        match self.usual.compile(expression, &[]) {
            Err(CompileError::Invalid(why)) => Err(why),
            // No program is made of it.
            Ok(_) | Err(CompileError::WrongType { .. } | CompileError::Program(_)) => Ok(()),
        }
    }

    /// Compiles a variable, which later expressions can name, whatever is wrong with it.
    ///
    /// # Errors
    /// What is wrong with it, in upstream's words.
    pub(crate) fn add_variable(&mut self, name: &str, expression: &str) -> Result<(), String> {
        let compiled = compile(&self.usual, expression, Wanted::Any);
        self.types.add(name, compiled.as_ref().ok().map(Compiled::result_type));
        let failure = compiled.as_ref().err().cloned();
        let program = compiled.map(Compiled::into_program);
        self.composition.0.push(Variable { name: name.to_owned(), program });
        failure.map_or(Ok(()), Err)
    }

    /// Compiles the variables of a stored policy. What is wrong with one is said where it is used.
    pub(crate) fn add_variables(&mut self, variables: &Value) {
        for variable in variables.as_array().into_iter().flatten() {
            let text = |field: &str| variable[field].as_str().unwrap_or("");
            let _ = self.add_variable(text("name"), text("expression"));
        }
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// What is wrong with it, in upstream's words.
    pub(crate) fn compile(&self, expression: &str, wanted: Wanted) -> Result<Program, String> {
        let environment = match wanted {
            Wanted::Message => &self.plain,
            Wanted::Bool | Wanted::Annotation | Wanted::Any => &self.usual,
            Wanted::Object | Wanted::JsonPatch => &self.patches,
        };
        compile(environment, expression, wanted).map(Compiled::into_program)
    }

    /// An expression that is evaluated later, if it can be.
    pub(crate) fn expression(&self, text: &str, wanted: Wanted) -> Expression {
        Expression::new(text, self.compile(text, wanted))
    }

    /// The variables that were added.
    pub(crate) fn into_composition(self) -> Composition {
        self.composition
    }
}
