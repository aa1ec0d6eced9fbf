//! The types that the rules of a node can name.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::decl::{DeclType, DeclTypes, Shape, escape};

/// The name of the type of a resource; upstream makes up another one each time.
const NAME: &str = "selfType";

/// The type of a node, and all types of objects around it.
#[derive(Debug, Clone)]
pub(super) struct TypeInfo {
    pub(super) declared: Arc<DeclType>,
    pub(super) types: Arc<DeclTypes>,
}

impl TypeInfo {
    /// The types of a schema; nothing if expressions cannot see values of it.
    pub(super) fn of(schema: &Json, is_resource_root: bool) -> Option<Self> {
        let declared = Arc::new(DeclType::of_schema(schema, is_resource_root, NAME)?);
        Some(Self { types: Arc::new(DeclTypes::new([Arc::clone(&declared)])), declared })
    }

    fn with(&self, declared: &Arc<DeclType>) -> Self {
        Self { declared: Arc::clone(declared), types: Arc::clone(&self.types) }
    }

    /// Of a property that expressions can select.
    pub(super) fn property(&self, name: &str) -> Option<Self> {
        let declared = self.declared.own_property(name).filter(|_| escape(name).is_some())?;
        (!matches!(declared.shape(), Shape::Unknown)).then(|| self.with(declared))
    }

    /// Of the elements of a list, or the values of a map.
    pub(super) fn element(&self) -> Option<Self> {
        match self.declared.shape() {
            Shape::List(element, _) | Shape::Map(element) => Some(self.with(element)),
            _ => None,
        }
    }
}
