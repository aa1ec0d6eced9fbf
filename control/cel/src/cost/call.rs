//! What calls will cost: the cases of cel-go's `functionCost`, of its libraries, and of upstream's `EstimateCallCost`.

use super::{
    AUTHORIZATION_CHECK, Cost, CostEstimate, FORMAT_NAME, LIST, NAME_FORMAT_REGEX, REGEX, STRUCT, SizeEstimate,
    TRAVERSAL, estimate::Node,
};
use crate::{
    ast::{Kind, Literal},
    types::Type,
};

/// What a call costs, and how large its result is, if that is known.
type Estimate = (CostEstimate, Option<SizeEstimate>);

/// The operands of a call.
#[derive(Debug)]
pub(super) struct Operands<'x, 'e> {
    pub(super) target: Option<&'x Node<'e>>,
    pub(super) args: &'x [Node<'e>],
    /// What each argument costs.
    pub(super) costs: &'x [CostEstimate],
}

fn traverse(size: SizeEstimate) -> CostEstimate {
    size.by_factor(TRAVERSAL)
}

fn regex(text: SizeEstimate, pattern: SizeEstimate) -> CostEstimate {
    traverse(text.plus(SizeEstimate::fixed(1))).times(pattern.by_factor(REGEX))
}

/// A call that makes a list.
fn allocating(factor: f64, size: SizeEstimate) -> Estimate {
    (size.by_factor(factor).plus(CostEstimate::fixed(1 + LIST)), Some(size))
}

/// An int that is written out, or what it is otherwise.
fn written(node: Option<&Node<'_>>, otherwise: u64) -> u64 {
    match node.and_then(|node| node.expr).map(|expr| &expr.kind) {
        Some(Kind::Literal(Literal::Int(value))) => u64::try_from(*value).unwrap_or(0),
        _ => otherwise,
    }
}

impl Operands<'_, '_> {
    fn arg(&self, index: usize) -> SizeEstimate {
        self.args.get(index).map_or(SizeEstimate::UNKNOWN, Node::size_or_unknown)
    }

    fn target(&self) -> SizeEstimate {
        self.target.map_or(SizeEstimate::UNKNOWN, Node::size_or_unknown)
    }

    /// The receiver, or of a function the first argument.
    fn subject(&self) -> SizeEstimate {
        if self.target.is_some() { self.target() } else { self.arg(0) }
    }

    fn args_cost(&self) -> CostEstimate {
        self.costs.iter().fold(CostEstimate::default(), |sum, cost| sum.plus(*cost))
    }

    /// What a call costs with its arguments, of the receiver not what it costs itself.
    pub(super) fn estimate(&self, cost: Cost) -> Estimate {
        if let Some(estimate) = self.logical(cost) {
            return estimate;
        }
        let (own, size) =
            self.of_kubernetes(cost).or_else(|| self.of_lists(cost)).unwrap_or_else(|| self.of_standard(cost));
        (own.plus(self.args_cost()), size)
    }

    /// Operators that do not evaluate all of their arguments.
    fn logical(&self, cost: Cost) -> Option<Estimate> {
        let arg = |index: usize| self.costs.get(index).copied().unwrap_or_default();
        match cost {
            Cost::Logical => {
                let (left, right) = (arg(0), arg(1));
                Some((CostEstimate { min: left.min, max: left.plus(right).max }, None))
            }
            Cost::Conditional => {
                let size = self.arg(1).union(self.arg(2));
                Some((arg(0).plus(arg(1).union(arg(2))), Some(size)))
            }
            _ => None,
        }
    }

    fn of_kubernetes(&self, cost: Cost) -> Option<Estimate> {
        let one = CostEstimate::fixed(1);
        Some(match cost {
            Cost::Accessor | Cost::CidrIp => (one, None),
            Cost::AuthorizationCheck => (CostEstimate::fixed(AUTHORIZATION_CHECK), None),
            Cost::Selector => {
                let length = self.arg(0);
                let requirements = length.by_factor(0.5).by_factor((LIST + STRUCT) as f64);
                (CostEstimate::fixed(LIST).plus(traverse(length)).plus(requirements), None)
            }
            Cost::Scan => {
                let element = self.target.and_then(Node::element);
                let cost = match element {
                    Some((Type::String | Type::Bytes, size)) => self.target().cost().times(one.plus(traverse(size))),
                    Some(_) => self.target().cost().times(one),
                    None => traverse(self.target()),
                };
                (cost, None)
            }
            Cost::Traverse => (traverse(self.subject()), Some(self.subject())),
            Cost::Replace => (self.target().by_factor(2.0 * TRAVERSAL), Some(self.replaced())),
            Cost::Split => {
                let size = self.target();
                let max = match self.args.get(1).and_then(|arg| arg.expr).map(|expr| &expr.kind) {
                    Some(Kind::Literal(Literal::Int(limit))) => limit.cast_unsigned(),
                    _ => size.max,
                };
                (size.by_factor(2.0 * TRAVERSAL), Some(SizeEstimate { min: 0, max }))
            }
            Cost::Join => {
                let size = self.joined();
                (traverse(size), Some(size))
            }
            Cost::Find => {
                let size = self.target();
                (regex(size, self.arg(0)), Some(SizeEstimate { min: 0, max: size.max }))
            }
            Cost::Parse => (traverse(self.arg(0)), None),
            Cost::ParseTwice => (self.arg(0).by_factor(2.0 * TRAVERSAL), None),
            Cost::ContainsIp | Cost::ContainsIpText | Cost::ContainsCidr | Cost::ContainsCidrText => {
                (self.containment(cost), None)
            }
            Cost::Validate => (traverse(self.arg(0)).by_factor(NAME_FORMAT_REGEX * REGEX), None),
            Cost::Equals => return self.equality().map(|cost| (cost, None)),
            _ => return None,
        })
    }

    /// Addresses have 4 or 16 bytes.
    fn containment(&self, cost: Cost) -> CostEstimate {
        let address = SizeEstimate { min: 4, max: 16 };
        let mut sum = traverse(address.plus(address));
        if matches!(cost, Cost::ContainsCidr | Cost::ContainsCidrText) {
            sum = sum.plus(traverse(address)).plus(CostEstimate::fixed(1));
        }
        if matches!(cost, Cost::ContainsIpText | Cost::ContainsCidrText) {
            sum = sum.plus(traverse(self.arg(0)));
        }
        sum
    }

    /// Values of upstream's own types are compared at once.
    fn equality(&self) -> Option<CostEstimate> {
        let [left, right] = self.args else { return None };
        if left.of.name() != right.of.name() {
            return None;
        }
        match (left.of, left.of.name()) {
            (Type::Opaque(..), "net.IP" | "net.CIDR") => Some(CostEstimate::fixed(1)),
            (Type::Object(_), "kubernetes.NamedFormat") => {
                Some(SizeEstimate { min: 1, max: FORMAT_NAME }.by_factor(TRAVERSAL))
            }
            (Type::Object(_), "kubernetes.URL") => {
                let max = right.size.map_or(1, |size| size.max);
                Some(SizeEstimate { min: 1, max }.by_factor(TRAVERSAL))
            }
            (Type::Object(_), name) if is_of_kubernetes(name) => Some(CostEstimate::fixed(1)),
            _ => None,
        }
    }

    /// How large a text is after parts of it were replaced.
    fn replaced(&self) -> SizeEstimate {
        let (size, old, new) = (self.target(), self.arg(0), self.arg(1));
        let parts = |size: u64, part: u64| (size as f64 / part as f64).ceil() as u64;
        let (mut count, mut kept) = (SizeEstimate::default(), SizeEstimate::default());
        if old.min == 0 {
            count.max = size.max.saturating_add(1);
            kept.max = size.max;
        } else if new.max <= old.min {
            kept.max = size.max;
        } else {
            count.max = parts(size.max, old.min);
        }
        if old.max == 0 {
            count.min = size.min.saturating_add(1);
            kept.min = size.min;
        } else if old.max <= new.min {
            kept.min = size.min;
        } else {
            count.min = parts(size.min, old.max);
        }
        count.times(new).plus(kept)
    }

    fn joined(&self) -> SizeEstimate {
        let list = self.target();
        let texts = self.target.and_then(Node::element).map_or(SizeEstimate::default(), |(_, size)| list.times(size));
        match self.args.first() {
            Some(separator) => {
                let count = SizeEstimate { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                texts.plus(separator.size_or_unknown().times(count))
            }
            None => texts,
        }
    }

    fn of_lists(&self, cost: Cost) -> Option<Estimate> {
        Some(match cost {
            Cost::Sets | Cost::SetsTwice => {
                let factor = if cost == Cost::Sets { 1.0 } else { 2.0 };
                let product = self.arg(0).times(self.arg(1)).by_factor(factor);
                (product.plus(CostEstimate::fixed(1)), None)
            }
            Cost::Slice => {
                let start = written(self.args.first(), 0);
                let end = written(self.args.get(1), self.target().max);
                allocating(1.0, SizeEstimate::fixed(end.wrapping_sub(start)))
            }
            Cost::Range => allocating(1.0, SizeEstimate::fixed(written(self.args.first(), u64::MAX))),
            Cost::Reverse => allocating(1.0, self.target()),
            Cost::Flatten => {
                let depth = if self.args.is_empty() { 1 } else { written(self.args.first(), u64::MAX) };
                allocating(depth as f64, self.target())
            }
            Cost::Distinct => allocating(2.0, self.target().times(self.target())),
            Cost::Sort | Cost::SortTexts => {
                let size = if self.args.is_empty() { self.target() } else { self.arg(0) };
                let factor = if cost == Cost::Sort { 2.0 } else { 2.0 + TRAVERSAL };
                allocating(factor, size.times(size))
            }
            _ => return None,
        })
    }

    fn of_standard(&self, cost: Cost) -> Estimate {
        let (first, second) = (self.arg(0), self.arg(1));
        match cost {
            Cost::Format => (traverse(self.target()), None),
            Cost::StringToBytes => {
                (traverse(first), Some(SizeEstimate { min: first.min, max: first.max.wrapping_mul(4) }))
            }
            Cost::BytesToString => (traverse(first), Some(SizeEstimate { min: first.min / 4, max: first.max })),
            Cost::Quote => {
                let max = first.max.wrapping_mul(2).wrapping_add(2);
                (traverse(first), Some(SizeEstimate { min: first.min.wrapping_add(2), max }))
            }
            Cost::Affix => (traverse(first), None),
            Cost::InList => (second.by_factor(1.0), None),
            Cost::Matches => (regex(self.target(), first), None),
            Cost::Contains => (traverse(self.target()).times(traverse(first)), None),
            Cost::Added => (traverse(first.plus(second)), Some(first.plus(second))),
            Cost::AddedList => (CostEstimate::fixed(1), Some(first.plus(second))),
            Cost::Compared | Cost::Equals => {
                let max = first.max.min(second.max);
                (CostEstimate { min: u64::from(max > 0), max }.by_factor(TRAVERSAL), None)
            }
            _ => (CostEstimate::fixed(1), None),
        }
    }
}

/// Types of which upstream knows that comparing them costs nothing more.
fn is_of_kubernetes(name: &str) -> bool {
    matches!(name, "kubernetes.Quantity" | "kubernetes.Semver") || name.starts_with("kubernetes.authorization.")
}
