//! Sets of fields, as a tree of path elements. Upstream: `structured-merge-diff/fieldpath/set.go`.

use std::cmp::Ordering;

use super::path::{Path, PathElement};

/// A set of fields of an object. That a field is in the set says nothing of the fields in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Fields of this level that are in the set, in order.
    pub(super) members: Vec<PathElement>,
    /// Fields of this level with fields in them that are in the set, in order; none of these sets is empty.
    pub(super) children: Vec<(PathElement, FieldSet)>,
}

impl FieldSet {
    /// A set of these paths.
    #[must_use]
    pub fn of(paths: impl IntoIterator<Item = Path>) -> Self {
        let mut set = Self::default();
        paths.into_iter().for_each(|path| set.insert(&path.0));
        set
    }

    /// A set of fields that are named by dots: `spec.replicas`.
    #[must_use]
    pub fn of_names<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let field = |name: &str| PathElement::Field(name.to_owned());
        Self::of(paths.into_iter().map(|path| Path(path.split('.').map(field).collect())))
    }

    /// Whether nothing is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.iter().all(|(_, child)| child.is_empty())
    }

    /// Adds a field; the fields that it is in are not added. The empty path, the whole object, is in no set.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => self.insert_member(last.clone()),
            [first, rest @ ..] => self.child_mut(first).insert(rest),
        }
    }

    pub(super) fn insert_member(&mut self, element: PathElement) {
        // Walks go through maps in the order of their keys: mostly the new one is the last.
        if self.members.last().is_none_or(|last| *last < element) {
            self.members.push(element);
        } else if let Err(at) = self.members.binary_search(&element) {
            self.members.insert(at, element);
        }
    }

    /// Adds what is in a field; nothing if `set` is empty.
    pub(super) fn insert_child(&mut self, element: PathElement, set: Self) {
        if set.is_empty() {
            return;
        }
        if self.children.last().is_none_or(|(last, _)| *last < element) {
            self.children.push((element, set));
            return;
        }
        match self.find(&element) {
            Ok(at) => self.children[at].1 = self.children[at].1.union(&set),
            Err(at) => self.children.insert(at, (element, set)),
        }
    }

    fn child_mut(&mut self, element: &PathElement) -> &mut Self {
        let at = self.find(element).unwrap_or_else(|at| {
            self.children.insert(at, (element.clone(), Self::default()));
            at
        });
        &mut self.children[at].1
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        self.children.binary_search_by(|(other, _)| other.cmp(element))
    }

    /// Whether a field of this level is in the set.
    pub(super) fn has_member(&self, element: &PathElement) -> bool {
        self.members.binary_search(element).is_ok()
    }

    /// What is in a field of this level.
    pub(super) fn child(&self, element: &PathElement) -> Option<&Self> {
        self.find(element).ok().map(|at| &self.children[at].1)
    }

    /// Whether a field is in the set.
    #[must_use]
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.has_member(last),
            [first, rest @ ..] => self.child(first).is_some_and(|child| child.has(rest)),
        }
    }

    /// Fields in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut out = Self::default();
        zip(&self.members, &other.members, |e| e, |a, b| out.members.extend(a.or(b).cloned()));
        zip(
            &self.children,
            &other.children,
            |(e, _)| e,
            |a, b| {
                out.children.extend(match (a, b) {
                    (Some((element, a)), Some((_, b))) => Some((element.clone(), a.union(b))),
                    (one, None) | (None, one) => one.cloned(),
                });
            },
        );
        out
    }

    /// Fields in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut out = Self::default();
        zip(&self.members, &other.members, |e| e, |a, b| out.members.extend(a.filter(|_| b.is_some()).cloned()));
        zip(
            &self.children,
            &other.children,
            |(e, _)| e,
            |a, b| {
                if let (Some((element, a)), Some((_, b))) = (a, b) {
                    out.insert_child(element.clone(), a.intersection(b));
                }
            },
        );
        out
    }

    /// Fields of this set that are not in the other. A field stays if only one in it, or one that it is in, is in the
    /// other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = Self::default();
        zip(&self.members, &other.members, |e| e, |a, b| out.members.extend(a.filter(|_| b.is_none()).cloned()));
        zip(
            &self.children,
            &other.children,
            |(e, _)| e,
            |a, b| match (a, b) {
                (Some((element, a)), Some((_, b))) => out.insert_child(element.clone(), a.difference(b)),
                (Some(only), None) => out.children.push(only.clone()),
                (None, _) => {}
            },
        );
        out
    }

    /// Fields of this set that are neither in the other nor in a field that is in the other.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let mut out = Self::default();
        zip(&self.members, &other.members, |e| e, |a, b| out.members.extend(a.filter(|_| b.is_none()).cloned()));
        for (element, child) in &self.children {
            if other.has_member(element) {
                continue;
            }
            let rest =
                other.child(element).map_or_else(|| child.clone(), |removed| child.recursive_difference(removed));
            out.insert_child(element.clone(), rest);
        }
        out
    }

    /// Fields of this set in which no other field of it is.
    #[must_use]
    pub fn leaves(&self) -> Self {
        Self {
            members: self.members.iter().filter(|member| self.child(member).is_none()).cloned().collect(),
            children: self.children.iter().map(|(element, child)| (element.clone(), child.leaves())).collect(),
        }
    }

    /// The paths of all fields in the set: first those of a level, then those in it.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        let (mut out, mut prefix) = (Vec::new(), Vec::new());
        self.collect(&mut prefix, &mut out);
        out
    }

    fn collect(&self, prefix: &mut Vec<PathElement>, out: &mut Vec<Path>) {
        for member in &self.members {
            out.push(Path(prefix.iter().chain([member]).cloned().collect()));
        }
        for (element, child) in &self.children {
            prefix.push(element.clone());
            child.collect(prefix, out);
            prefix.pop();
        }
    }
}

/// Walks two lists in the order of their keys; calls `each` once for each key, with the item of each list that has it.
fn zip<'a, T>(
    a: &'a [T],
    b: &'a [T],
    key: impl Fn(&'a T) -> &'a PathElement,
    mut each: impl FnMut(Option<&'a T>, Option<&'a T>),
) {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => key(a).cmp(key(b)),
        };
        each(if order.is_le() { a.next() } else { None }, if order.is_ge() { b.next() } else { None });
    }
}
