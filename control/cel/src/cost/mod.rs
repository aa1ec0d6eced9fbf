//! What expressions cost: an estimate when they are written, and what they have cost when they were evaluated. Both are part
//! of the API: rules are refused for the first, and end at the second.
//!
//! cel-go's `checker/cost.go` and `interpreter/runtimecost.go`, and upstream's `library/cost.go`.

mod actual;
mod call;
mod estimate;

pub(crate) use self::estimate::estimate;

/// What a variable or a field costs; cel-go's `SelectAndIdentCost`.
pub(crate) const SELECT: u64 = 1;
/// What a list that is written out costs, besides its elements.
pub(crate) const LIST: u64 = 10;
/// What a map that is written out costs, besides its entries.
pub(crate) const MAP: u64 = 30;
/// What a struct that is written out costs, besides its fields.
pub(crate) const STRUCT: u64 = 40;
/// What a character of a text that is read costs.
const TRAVERSAL: f64 = 0.1;
/// What a character of a regular expression costs, for each character that it is applied to.
const REGEX: f64 = 0.25;
/// What a check of a permission costs: two fit into an expression.
const AUTHORIZATION_CHECK: u64 = 350_000;
/// The longest expression that stands for a format of names.
const NAME_FORMAT_REGEX: f64 = 128.0;
/// The longest name of a format.
const FORMAT_NAME: u64 = 64;

/// The least and the most that evaluation can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CostEstimate {
    /// The least.
    pub min: u64,
    /// The most; `u64::MAX` if nothing limits it.
    pub max: u64,
}

/// The least and the greatest size: characters of a text, bytes, elements or entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeEstimate {
    /// The least.
    pub min: u64,
    /// The greatest; `u64::MAX` if nothing limits it.
    pub max: u64,
}

impl CostEstimate {
    const fn fixed(cost: u64) -> Self {
        Self { min: cost, max: cost }
    }

    const fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    const fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn by_factor(self, factor: f64) -> Self {
        Self { min: by_factor(self.min, factor), max: by_factor(self.max, factor) }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

impl SizeEstimate {
    /// A size of which nothing is known.
    pub const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    const fn fixed(size: u64) -> Self {
        Self { min: size, max: size }
    }

    const fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    const fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn by_factor(self, factor: f64) -> CostEstimate {
        self.cost().by_factor(factor)
    }

    /// So much for each.
    const fn cost(self) -> CostEstimate {
        CostEstimate { min: self.min, max: self.max }
    }
}

/// A number times a factor, rounded up; cel-go's `multiplyByCostFactor`.
fn by_factor(number: u64, factor: f64) -> u64 {
    // A float above the largest number becomes that one.
    (number as f64 * factor).ceil() as u64
}

/// What a call costs, besides its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    /// As any operator.
    One,
    /// As any operator, whichever overload it is.
    Accessor,
    AuthorizationCheck,
    Selector,
    /// All elements, or characters.
    Scan,
    Traverse,
    Replace,
    Split,
    Join,
    Find,
    Parse,
    ParseTwice,
    CidrIp,
    ContainsIp,
    ContainsIpText,
    ContainsCidr,
    ContainsCidrText,
    Validate,
    Sets,
    SetsTwice,
    Slice,
    Range,
    Reverse,
    Flatten,
    Distinct,
    Sort,
    SortTexts,
    Format,
    StringToBytes,
    BytesToString,
    Quote,
    /// `startsWith` and `endsWith`.
    Affix,
    InList,
    Matches,
    Contains,
    Logical,
    Conditional,
    /// Texts and bytes.
    Added,
    AddedList,
    /// Texts, bytes, and whatever else is compared as a whole.
    Compared,
    Equals,
}

impl Cost {
    /// Whether it depends on what a call gives.
    pub(crate) const fn is_of_result(self) -> bool {
        matches!(self, Self::Join | Self::Slice | Self::Range | Self::Reverse)
    }

    /// What a call costs if it is not known which overload it is: upstream's own functions have their costs by name, all
    /// others by overload.
    pub(crate) const fn of_any_overload(self) -> Self {
        match self {
            Self::Accessor
            | Self::AuthorizationCheck
            | Self::Selector
            | Self::Scan
            | Self::Traverse
            | Self::Replace
            | Self::Split
            | Self::Join
            | Self::Find
            | Self::Parse
            | Self::ParseTwice
            | Self::Validate => self,
            Self::CidrIp => Self::Parse,
            Self::ContainsIp | Self::ContainsIpText => Self::ContainsIp,
            Self::ContainsCidr | Self::ContainsCidrText => Self::ContainsCidr,
            Self::Equals | Self::Compared => self,
            _ => Self::One,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_round_up_and_end_at_the_largest_number() {
        assert_eq!(by_factor(0, 0.1), 0);
        assert_eq!(by_factor(1, 0.1), 1);
        assert_eq!(by_factor(11, 0.1), 2);
        assert_eq!(by_factor(u64::MAX, 2.0), u64::MAX);
        assert_eq!(by_factor(u64::MAX, 1.0), u64::MAX);
    }
}
