//! The path of a field. Nearly all fields are valid, so that a path is rendered only for an error.

use std::{cell::OnceCell, fmt, rc::Rc};

/// One step into an object.
#[derive(Debug, Clone)]
enum Step {
    /// The field of this name.
    Field(&'static str),
    /// As [`Field`](Self::Field), of a name that is not known before.
    Named(Rc<str>),
    /// `[0]`, the item of a list.
    Item(usize),
    /// `[key]`, the entry of a map.
    Key(Rc<str>),
}

#[derive(Debug)]
struct Parent {
    within: Option<Rc<Parent>>,
    step: Step,
}

/// A path such as `spec.containers[0].image`, as a list from its end to the object, as `field.Path` of upstream.
#[derive(Debug, Clone)]
pub(crate) struct FieldPath {
    within: Option<Rc<Parent>>,
    step: Step,
    /// This path as the parent of others, made for the first of them.
    parent: OnceCell<Rc<Parent>>,
}

impl FieldPath {
    /// The object itself: the empty path.
    pub(crate) fn root() -> Self {
        Self::of(None, Step::Field(""))
    }

    fn of(within: Option<Rc<Parent>>, step: Step) -> Self {
        Self { within, step, parent: OnceCell::new() }
    }

    fn is_root(&self) -> bool {
        self.within.is_none() && matches!(self.step, Step::Field(""))
    }

    fn enter(&self, step: Step) -> Self {
        if self.is_root() {
            return Self::of(None, step);
        }
        let parent = || Rc::new(Parent { within: self.within.clone(), step: self.step.clone() });
        Self::of(Some(Rc::clone(self.parent.get_or_init(parent))), step)
    }

    /// The field `name` below this one.
    pub(crate) fn field(&self, name: &'static str) -> Self {
        self.enter(Step::Field(name))
    }

    /// The field `name` below this one, whose name is not known before.
    pub(crate) fn named(&self, name: &str) -> Self {
        self.enter(Step::Named(name.into()))
    }

    /// An item of this list.
    pub(crate) fn item(&self, at: usize) -> Self {
        self.enter(Step::Item(at))
    }

    /// An entry of this map.
    pub(crate) fn key(&self, key: &str) -> Self {
        self.enter(Step::Key(key.into()))
    }

    /// The name of the field itself; nothing for items and entries.
    pub(crate) fn name(&self) -> &str {
        let name = match &self.step {
            Step::Field(name) => *name,
            Step::Named(name) => name,
            Step::Item(_) | Step::Key(_) => "",
        };
        name.rsplit('.').next().unwrap_or(name)
    }

    /// Whether it stands in the list of this name.
    pub(crate) fn is_in(&self, list: &str) -> bool {
        let mut parents = std::iter::successors(self.within.as_deref(), |parent| parent.within.as_deref());
        parents.any(|parent| matches!(parent.step, Step::Field(name) if name == list))
    }
}

/// A path that is written already.
impl From<String> for FieldPath {
    fn from(path: String) -> Self {
        if path.is_empty() { Self::root() } else { Self::of(None, Step::Named(path.into())) }
    }
}

impl From<&FieldPath> for String {
    fn from(path: &FieldPath) -> Self {
        path.to_string()
    }
}

impl From<FieldPath> for String {
    fn from(path: FieldPath) -> Self {
        path.to_string()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parents = std::iter::successors(self.within.as_deref(), |parent| parent.within.as_deref());
        let mut steps: Vec<&Step> = std::iter::once(&self.step).chain(parents.map(|parent| &parent.step)).collect();
        steps.reverse();
        let mut before = "";
        for step in steps {
            match step {
                Step::Field(name) => write!(f, "{before}{name}")?,
                Step::Named(name) => write!(f, "{before}{name}")?,
                Step::Item(at) => write!(f, "[{at}]")?,
                Step::Key(key) => write!(f, "[{key}]")?,
            }
            before = ".";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_upstream_writes_them() {
        let spec = FieldPath::root().field("spec");
        let container = spec.field("containers").item(12);
        for (path, written) in [
            (FieldPath::root(), ""),
            (spec.clone(), "spec"),
            (container.field("image"), "spec.containers[12].image"),
            (spec.field("nodeSelector").key("a.b/c"), "spec.nodeSelector[a.b/c]"),
            (FieldPath::from("a.b[0]".to_owned()).named("c"), "a.b[0].c"),
            (FieldPath::from(String::new()).field("spec"), "spec"),
            (FieldPath::root().key("x"), "[x]"),
        ] {
            assert_eq!(path.to_string(), written);
            assert_eq!(String::from(&path), written);
        }
        assert_eq!((container.field("image").name(), container.name()), ("image", ""));
        assert!(
            container.is_in("containers") && !container.is_in("initContainers") && !container.is_in("spec.containers")
        );
    }
}
