//! Selectors of devices: expressions of DeviceClasses and of the requests of claims. They are compiled to refuse what cannot
//! be used; nothing evaluates them, as no devices are allocated.
//!
//! Upstream: `k8s.io/dynamic-resource-allocation/cel`, with the gate `DRAConsumableCapacity` on and `DRAListTypeAttributes` off.

use std::sync::{Arc, LazyLock};

use windlass_cel::{CompileError, Environment, SizeEstimate, SizeEstimator, Type, TypeProvider};

/// The variable that a selector is about, and the name of its type.
const DEVICE: &str = "device";
const DEVICE_TYPE: &str = "kubernetes.DRADevice";
/// The most that a selector may cost by its estimate; upstream's `CELSelectorExpressionMaxCost`.
const MAX_COST: u64 = 1_000_000;
/// Upstream's limits of what a ResourceSlice says of a device.
const MAX_DRIVER: u64 = 63;
const MAX_DOMAIN: u64 = 63;
const MAX_ID: u64 = 32;
const MAX_VALUE: u64 = 64;
const MAX_ATTRIBUTES_AND_CAPACITIES: u64 = 32;

/// What a selector can name.
static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    Environment::base()
        .with_types(Arc::new(DeviceTypes))
        .with_variable(DEVICE, Type::object(DEVICE_TYPE))
        .with_bindings()
});

/// Why a selector is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SelectorError {
    /// It cannot be used.
    Invalid(String),
    /// It may cost too much.
    TooComplex,
    /// No program can be made of it.
    Internal(String),
}

/// Checks a selector that is written. Upstream: `CompileCELExpression`, and `validateCELSelector`.
///
/// # Errors
/// Why it is refused, in upstream's words.
pub(crate) fn check_selector(expression: &str) -> Result<(), SelectorError> {
    if estimate(expression)? > MAX_COST { Err(SelectorError::TooComplex) } else { Ok(()) }
}

/// What a selector costs at most.
fn estimate(expression: &str) -> Result<u64, SelectorError> {
    let compiled = ENVIRONMENT.compile(expression, &[]).map_err(|error| match error {
        CompileError::Program(why) => SelectorError::Internal(format!("program instantiation failed: {why}")),
        other => SelectorError::Invalid(format!("compilation failed: {other}")),
    })?;
    // The value of an attribute may be a boolean.
    match compiled.result_type() {
        Type::Bool | Type::Any => Ok(compiled.estimate(&DeviceSizes).max),
        other => {
            let why = format!("must evaluate to bool or the unknown type, not {}", other.declared());
            Err(SelectorError::Invalid(why))
        }
    }
}

/// The type of the variable.
#[derive(Debug)]
struct DeviceTypes;

impl TypeProvider for DeviceTypes {
    fn find_type(&self, name: &str) -> Option<Type> {
        (name == DEVICE_TYPE).then(|| Type::object(DEVICE_TYPE))
    }

    fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        // By their domains, and then by their identifiers.
        let qualified = |value: Type| Type::map(Type::String, Type::map(Type::String, value));
        match (type_name, field) {
            (DEVICE_TYPE, "driver") => Some(Type::String),
            (DEVICE_TYPE, "allowMultipleAllocations") => Some(Type::Bool),
            (DEVICE_TYPE, "attributes") => Some(qualified(Type::Any)),
            (DEVICE_TYPE, "capacity") => Some(qualified(Type::object("kubernetes.Quantity"))),
            _ => None,
        }
    }
}

/// The greatest sizes of the variable and of what it holds. Upstream: `sizeEstimator`.
#[derive(Debug)]
struct DeviceSizes;

impl SizeEstimator for DeviceSizes {
    fn estimate(&self, path: &[&str]) -> Option<SizeEstimate> {
        let max = match path {
            // Of these upstream has no size, which is one of 0.
            [DEVICE] | [DEVICE, "capacity", "@items" | "@values", "@items" | "@values"] => 0,
            [DEVICE, "driver"] => MAX_DRIVER,
            [DEVICE, "allowMultipleAllocations"] => 1,
            [DEVICE, "attributes" | "capacity"] => MAX_ATTRIBUTES_AND_CAPACITIES,
            [DEVICE, "attributes" | "capacity", "@keys"] => MAX_DOMAIN,
            [DEVICE, "attributes" | "capacity", "@items" | "@values"] => MAX_ATTRIBUTES_AND_CAPACITIES,
            [DEVICE, "attributes" | "capacity", "@items" | "@values", "@keys"] => MAX_ID,
            // Attributes have one size, whatever they are called.
            [DEVICE, "attributes", "@items" | "@values", _] => MAX_VALUE,
            _ => return None,
        };
        Some(SizeEstimate { min: 0, max })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// What ANTLR says after the first error is only said in common cases.
    const EXCEPTION: &str = "?!";
    /// Recorded by `record.go` next to it.
    const ANSWERS: &str = include_str!("../../tests/selectors/selectors.jsonl");

    #[test]
    fn selectors_have_upstreams_verdicts() {
        let (mut rows, mut different, mut excused) = (0, Vec::new(), 0);
        for line in ANSWERS.lines().filter(|line| line.starts_with('{')) {
            let row: Value = serde_json::from_str(line).unwrap();
            let wanted = match (row["max"].as_str(), row["invalid"].as_str(), row["internal"].as_str()) {
                (Some(max), None, None) => Ok(max.parse().unwrap()),
                (None, Some(why), None) => Err(SelectorError::Invalid(why.to_owned())),
                (None, None, Some(why)) => Err(SelectorError::Internal(why.to_owned())),
                _ => panic!("{line}"),
            };
            rows += 1;
            let expression = row["expr"].as_str().unwrap();
            let found = estimate(expression);
            if found != wanted && expression == EXCEPTION {
                excused += 1;
            } else if found != wanted {
                different.push(format!("{expression}\n  upstream {wanted:?}\n  here     {found:?}"));
            }
        }
        assert!(different.is_empty(), "{} of {rows} differ:\n{}", different.len(), different.join("\n"));
        assert!(rows > 180, "{rows}");
        assert_eq!(excused, 1);
    }

    #[test]
    fn a_selector_that_may_cost_too_much_is_refused() {
        let ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
        let nested =
            |depth: usize| (0..depth).fold("true".to_owned(), |inside, at| format!("{ten}.all(v{at}, {inside})"));
        assert_eq!(check_selector(&nested(2)), Ok(()));
        assert_eq!(check_selector(&nested(7)), Err(SelectorError::TooComplex));
    }
}
