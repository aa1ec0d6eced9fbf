//! What an expression can name: variables, types and functions; upstream's `MustBaseEnvSet` for 1.36.

use std::{collections::HashMap, sync::Arc};

use crate::{
    checker::{self, Checked},
    cost::{self, CostEstimate},
    error::CompileError,
    library::{self, Function},
    parser::{self, Macros},
    plan::Program,
    provider::{SizeEstimator, TypeProvider},
    source::Source,
    types::{Param, Type},
};

/// The variables, types and functions that expressions can use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: Arc<HashMap<Box<str>, Type>>,
    providers: Vec<Arc<dyn TypeProvider>>,
    has_json_patch: bool,
    macros: Macros,
}

impl Environment {
    /// Kubernetes' functions and types, and no variable.
    #[must_use]
    pub fn base() -> Self {
        Self::default()
    }

    /// With a variable, whose name may have dots.
    #[must_use]
    pub fn with_variable(mut self, name: &str, of: Type) -> Self {
        Arc::make_mut(&mut self.variables).insert(name.into(), of);
        self
    }

    /// With types that have fields.
    #[must_use]
    pub fn with_types(mut self, types: Arc<dyn TypeProvider>) -> Self {
        self.providers.push(types);
        self
    }

    /// With the functions for JSON patches, which policies that mutate have.
    #[must_use]
    pub fn with_json_patch(self) -> Self {
        Self { has_json_patch: true, ..self }
    }

    /// With the macro `cel.bind`, which names a value within an expression.
    #[must_use]
    pub fn with_bindings(self) -> Self {
        Self { macros: Macros { bind: true }, ..self }
    }

    /// Parses, checks and plans an expression that must have one of the wanted types; of none, any type will do.
    ///
    /// # Errors
    /// What cel-go says of the expression, or that its type is another one.
    pub fn compile(&self, expression: &str, wanted: &[Type]) -> Result<Compiled, CompileError> {
        let source = Source::new(expression);
        let invalid = |errors: crate::source::Errors| CompileError::Invalid(errors.display(&source));
        let (root, positions) = parser::parse(&source, self.macros).map_err(invalid)?.into_parts();
        let checked = checker::check(self, &source, root, &positions).map_err(invalid)?;
        let found = checked.type_of(checked.root.id);
        if let Some(first) = wanted.first().filter(|_| !wanted.contains(found)) {
            return Err(CompileError::WrongType { wanted: first.clone(), found: found.clone() });
        }
        let program = Program::new(&checked)?;
        Ok(Compiled { program, checked })
    }

    /// The type of a variable, or the type that a name stands for; cel-go's `LookupIdent`.
    pub(crate) fn ident(&self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(of) = self.variables.get(name) {
            return Some(of.clone());
        }
        standard_type(name).or_else(|| self.find_type(name)).map(Type::type_of)
    }

    /// A type with fields, by its name.
    pub(crate) fn find_type(&self, name: &str) -> Option<Type> {
        self.providers.iter().find_map(|provider| provider.find_type(name))
    }

    /// The type of a field.
    pub(crate) fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        self.providers.iter().find_map(|provider| provider.find_field(type_name, field))
    }

    /// A function by its name.
    pub(crate) fn function(&self, name: &str) -> Option<&'static Function> {
        library::find(name.strip_prefix('.').unwrap_or(name), self.has_json_patch)
    }
}

/// Types that have a name in every environment.
fn standard_type(name: &str) -> Option<Type> {
    let param = |letter: char| Type::Param(Param::Named(letter));
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "google.protobuf.Duration" => Type::Duration,
        "int" => Type::Int,
        "list" => Type::list(param('A')),
        "map" => Type::map(param('A'), param('B')),
        "null_type" => Type::Null,
        "string" => Type::String,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "type" => Type::Opaque("type".into(), [].into()),
        "uint" => Type::Uint,
        "optional_type" => Type::Opaque("optional_type".into(), [].into()),
        "net.IP" | "net.CIDR" => Type::Opaque(name.into(), [].into()),
        _ => return None,
    })
}

/// An expression that can be evaluated, with what is known of it before.
#[derive(Debug)]
pub struct Compiled {
    program: Program,
    checked: Checked,
}

impl Compiled {
    /// The type of the expression's value.
    #[must_use]
    pub fn result_type(&self) -> &Type {
        self.checked.type_of(self.checked.root.id)
    }

    /// Whether the expression refers to a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.checked.uses(variable)
    }

    /// The least and the most that evaluation will cost; cel-go's `EstimateCost`.
    #[must_use]
    pub fn estimate(&self, sizes: &dyn SizeEstimator) -> CostEstimate {
        cost::estimate(&self.checked, sizes)
    }

    /// What is needed to evaluate the expression; the rest is given up.
    #[must_use]
    pub fn into_program(self) -> Program {
        self.program
    }

    /// What is needed to evaluate the expression.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }
}
