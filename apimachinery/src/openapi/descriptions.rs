//! What types and fields are for, in words.

use std::collections::HashMap;

/// The type whose descriptions hold for the lists that have none.
pub const LIST: &str = "core/v1.PodList";

/// Descriptions of types and of their fields.
///
/// Read from a text: a line `TYPE<tab>DESCRIPTION` for each type, followed by a line `<tab>FIELD<tab>DESCRIPTION` for each
/// of its fields that has one. In descriptions, `\n` is a line break and `\\` a backslash.
#[derive(Debug, Clone, Default)]
pub struct Descriptions<'a> {
    types: HashMap<&'a str, (&'a str, HashMap<&'a str, &'a str>)>,
}

impl<'a> Descriptions<'a> {
    /// Reads the text; lines of another form are skipped.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let mut types: HashMap<_, (_, HashMap<_, _>)> = HashMap::new();
        let mut current = "";
        for line in text.lines() {
            match line.split_once('\t') {
                Some(("", field)) => {
                    let holder = types.get_mut(current);
                    if let (Some((_, fields)), Some((field, description))) = (holder, field.split_once('\t')) {
                        fields.insert(field, description);
                    }
                }
                Some((name, description)) => {
                    current = name;
                    types.insert(name, (description, HashMap::new()));
                }
                None => {}
            }
        }
        Self { types }
    }

    /// The description of a type such as `core/v1.Pod`.
    #[must_use]
    pub fn of_type(&self, name: &str) -> Option<String> {
        self.types.get(name).map(|(description, _)| *description).filter(|text| !text.is_empty()).map(unescaped)
    }

    /// The description of a type's field; the fields of all lists are described at [`LIST`].
    #[must_use]
    pub fn of_field(&self, name: &str, field: &str) -> Option<String> {
        let described = self.types.get(name).or_else(|| self.types.get(LIST).filter(|_| name.ends_with("List")));
        described?.1.get(field).copied().map(unescaped)
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        out.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    out
}
