//! The order of fields in protobuf.

use std::sync::{Arc, OnceLock};

use super::Object;

/// The members of a protobuf message by ascending number.
#[derive(Debug, Clone, Default)]
pub struct WireOrder(OnceLock<Box<[(u32, Member)]>>);

/// A member of a protobuf message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// The property of this name.
    Property(Arc<str>),
    /// The inlined struct at this place of [`Object::inline`].
    Inline(usize),
}

impl Object {
    /// The members that have a number in protobuf, the lowest first. Empty for a type that is not on the wire.
    #[must_use]
    pub fn by_number(&self) -> &[(u32, Member)] {
        self.wire_order.0.get_or_init(|| {
            let own = self.properties.iter().filter(|(_, property)| !property.inlined);
            let own = own.filter_map(|(name, property)| Some((property.number?, Member::Property(Arc::clone(name)))));
            let inlined = self.inline.iter().enumerate();
            let inlined = inlined.filter_map(|(place, inline)| Some((inline.number?, Member::Inline(place))));
            let mut members: Box<[_]> = own.chain(inlined).collect();
            members.sort_unstable_by_key(|(number, _)| *number);
            members
        })
    }
}
