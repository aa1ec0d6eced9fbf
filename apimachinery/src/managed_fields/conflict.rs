//! Conflicts of an apply with what other managers own. Upstream: `managedfields/internal/conflict.go`.

use std::fmt;

use super::{managers::ManagerId, path::Path, set::FieldSet};

/// A field that is applied with another value than its manager set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Who owns the field.
    pub manager: ManagerId,
    /// The field.
    pub path: Path,
}

impl Conflict {
    /// The message of the cause in the Status.
    #[must_use]
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager.describe())
    }
}

/// All conflicts of an apply, by manager. Written as the message of the Status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    pub(super) fn of(owned: impl IntoIterator<Item = (ManagerId, FieldSet)>) -> Self {
        let mut out = Vec::new();
        for (manager, fields) in owned {
            out.extend(fields.paths().into_iter().map(|path| Conflict { manager: manager.clone(), path }));
        }
        Self(out)
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", only.message(), only.path);
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut manager = None;
        for conflict in &self.0 {
            if manager != Some(&conflict.manager) {
                let before = if manager.is_some() { "\n" } else { "" };
                write!(f, "{before}conflicts with {}:", conflict.manager.describe())?;
                manager = Some(&conflict.manager);
            }
            write!(f, "\n- {}", conflict.path)?;
        }
        Ok(())
    }
}

impl std::error::Error for Conflicts {}
