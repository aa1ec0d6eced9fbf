//! The rows of a snapshot.

use std::{cmp::Ordering, sync::Arc};

use super::{Row, SharedMap, Spot};
use crate::config::Target;

/// A container's place among the rows: by namespace, pod, container and id, whatever else is known of it.
#[derive(Debug, Clone)]
struct Place(Arc<Target>);

impl Place {
    fn of(target: &Arc<Target>) -> Self {
        Self(Arc::clone(target))
    }

    fn names(&self) -> [&str; 4] {
        [&self.0.pod_namespace, &self.0.pod_name, &self.0.container_name, &self.0.container_id]
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(&other.names())
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Place {}

/// Containers in the order of namespace, pod, container and id. Copies share what has not changed.
#[derive(Debug, Clone, Default)]
pub struct Rows(SharedMap<Place, Arc<Row>>);

impl Rows {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no rows.
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
    pub fn get(&self, target: &Arc<Target>) -> Option<&Arc<Row>> {
        self.0.get(&Place::of(target))
    }

    /// Adds the row of a container, or replaces it.
    pub fn insert(&mut self, row: Arc<Row>) {
        self.0.insert(Place::of(&row.target), row);
    }

    /// The same, looking first where its place was.
    pub(crate) fn insert_at(&mut self, spot: &mut Spot, row: Arc<Row>) {
        let target = Arc::clone(&row.target);
        self.0.insert_at(spot, |place| Arc::ptr_eq(&place.0, &target), || Place::of(&target), row);
    }

    /// Removes the row of a container.
    pub fn remove(&mut self, target: &Arc<Target>) {
        self.0.remove(&Place::of(target));
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
