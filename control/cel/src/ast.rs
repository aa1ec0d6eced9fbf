//! The syntax tree: cel-go's `common/ast`. Each node has an id, by which its position, type and reference are found.

/// Identifies a node of one expression, from 1 on.
pub(crate) type Id = u32;

/// The name of the accumulator of a macro; cel-go's `HiddenAccumulatorName`. No expression can name it.
pub(crate) const ACCUMULATOR: &str = "@result";
/// The name of an iteration variable that no expression refers to.
pub(crate) const UNUSED: &str = "#unused";

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Stands where an error was reported.
    Unspecified,
    Literal(Literal),
    Ident(String),
    Select(Select),
    Call(Call),
    List(List),
    Map(Vec<Entry>),
    Struct(Struct),
    Comprehension(Box<Comprehension>),
}

/// A value that is written out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

/// `operand.field`, or whether that is there.
#[derive(Debug, Clone)]
pub(crate) struct Select {
    pub(crate) operand: Box<Expr>,
    pub(crate) field: String,
    pub(crate) test_only: bool,
}

/// A function or an operator, by its name in the table of functions.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) target: Option<Box<Expr>>,
    pub(crate) args: Vec<Expr>,
}

/// `[a, ?b]`.
#[derive(Debug, Clone)]
pub(crate) struct List {
    pub(crate) elements: Vec<Expr>,
    /// Which elements are optional, by their index.
    pub(crate) optional: Vec<usize>,
}

/// An entry of a map.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// `Type{field: value}`.
#[derive(Debug, Clone)]
pub(crate) struct Struct {
    pub(crate) type_name: String,
    pub(crate) fields: Vec<Field>,
}

/// A field of a struct.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// What macros become: a loop that folds a range into an accumulator.
#[derive(Debug, Clone)]
pub(crate) struct Comprehension {
    pub(crate) range: Expr,
    pub(crate) iter_var: String,
    pub(crate) iter_var2: Option<String>,
    pub(crate) accu_var: String,
    pub(crate) accu_init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Comprehension {
    /// The child nodes, in the order of cel-go's visitor.
    pub(crate) const fn children(&self) -> [&Expr; 5] {
        [&self.range, &self.accu_init, &self.condition, &self.step, &self.result]
    }
}

impl Expr {
    /// Calls `visit` for all nodes, children first: cel-go's `MatchDescendants`.
    pub(crate) fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a Self)) {
        match &self.kind {
            Kind::Unspecified | Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select(select) => select.operand.visit(visit),
            Kind::Call(call) => {
                call.target.iter().for_each(|target| target.visit(visit));
                call.args.iter().for_each(|arg| arg.visit(visit));
            }
            Kind::List(list) => list.elements.iter().for_each(|element| element.visit(visit)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                entry.key.visit(visit);
                entry.value.visit(visit);
            }),
            Kind::Struct(object) => object.fields.iter().for_each(|field| field.value.visit(visit)),
            Kind::Comprehension(fold) => fold.children().into_iter().for_each(|child| child.visit(visit)),
        }
        visit(self);
    }

    /// `a.b.c` of an identifier and selections from it; cel-go's `ToQualifiedName`.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select(select) if !select.test_only => {
                let mut name = select.operand.qualified_name()?;
                name.push('.');
                name.push_str(&select.field);
                Some(name)
            }
            _ => None,
        }
    }
}

/// The names that operators have in the table of functions; cel-go's `common/operators`.
pub(crate) mod operators {
    pub(crate) const CONDITIONAL: &str = "_?_:_";
    pub(crate) const AND: &str = "_&&_";
    pub(crate) const OR: &str = "_||_";
    pub(crate) const NOT: &str = "!_";
    pub(crate) const EQUALS: &str = "_==_";
    pub(crate) const NOT_EQUALS: &str = "_!=_";
    pub(crate) const ADD: &str = "_+_";
    pub(crate) const NEGATE: &str = "-_";
    pub(crate) const INDEX: &str = "_[_]";
    pub(crate) const OPT_INDEX: &str = "_[?_]";
    pub(crate) const OPT_SELECT: &str = "_?._";
    pub(crate) const IN: &str = "@in";
    pub(crate) const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub(crate) const MAP_INSERT: &str = "cel.@mapInsert";
    pub(crate) const SORT_BY: &str = "@sortByAssociatedKeys";
}
