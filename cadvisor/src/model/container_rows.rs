//! The rows of a snapshot.

use std::{borrow::Borrow, cmp::Ordering, sync::Arc};

use super::{Row, SharedMap};
use crate::config::Target;

/// The place of a container among the rows.
#[derive(Debug, Clone)]
struct Place(Arc<Target>);

/// Orders containers.
trait Placed {
    fn place(&self) -> (&str, &str, &str, &str);
}

impl Placed for Target {
    fn place(&self) -> (&str, &str, &str, &str) {
        (&self.pod_namespace, &self.pod_name, &self.container_name, &self.container_id)
    }
}

impl Placed for Place {
    fn place(&self) -> (&str, &str, &str, &str) {
        self.0.place()
    }
}

impl PartialEq for dyn Placed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Placed + '_ {}

impl PartialOrd for dyn Placed + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Placed + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Place {}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl<'a> Borrow<dyn Placed + 'a> for Place {
    fn borrow(&self) -> &(dyn Placed + 'a) {
        self
    }
}

/// Containers in the order of namespace, pod, container and id. Copies share what has not changed.
#[derive(Debug, Clone, Default)]
pub struct Rows(SharedMap<Place, Arc<Row>>);

impl Rows {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.0.values()
    }

    /// The row of a container.
    #[must_use]
    pub fn get(&self, target: &Target) -> Option<&Arc<Row>> {
        self.0.get(target as &dyn Placed)
    }

    /// Adds the row of a container, or replaces it.
    pub fn insert(&mut self, row: Arc<Row>) {
        self.0.insert(Place(Arc::clone(&row.target)), row);
    }

    /// Removes the row of a container.
    pub fn remove(&mut self, target: &Target) {
        self.0.remove(target as &dyn Placed);
    }

    /// What is new or other than in earlier rows, and what of those is gone. Costs what has changed since.
    pub fn since<'a>(&'a self, earlier: &'a Self) -> (Vec<&'a Arc<Row>>, Vec<&'a Arc<Row>>) {
        let (new, old) = self.0.unshared(&earlier.0);
        let is_other = |row: &&Arc<Row>| earlier.get(&row.target).is_none_or(|known| !Arc::ptr_eq(known, row));
        let is_gone = |row: &&Arc<Row>| self.get(&row.target).is_none();
        (
            new.into_iter().map(|(_, row)| row).filter(is_other).collect(),
            old.into_iter().map(|(_, row)| row).filter(is_gone).collect(),
        )
    }
}

impl FromIterator<Arc<Row>> for Rows {
    fn from_iter<I: IntoIterator<Item = Arc<Row>>>(rows: I) -> Self {
        let mut all = Self::default();
        for row in rows {
            all.insert(row);
        }
        all
    }
}

#[cfg(test)]
impl std::ops::Index<usize> for Rows {
    type Output = Arc<Row>;

    fn index(&self, at: usize) -> &Arc<Row> {
        self.iter().nth(at).expect("fewer rows")
    }
}
