//! Capacity and allocatable resources of the node. Pure.

use std::collections::BTreeMap;

use windlass_kit::quantity::Quantity;

use super::{
    eviction::thresholds::{Signal, Threshold, ThresholdMap, hard_eviction_reservation},
    machine::Machine,
};

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// Resources that can be reserved.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// Parses `kubeReserved` or `systemReserved`.
///
/// # Errors
/// Every invalid amount, by the setting's name.
pub fn parse_reserved(setting: &str, of: &ThresholdMap) -> Result<Amounts, Vec<String>> {
    let (mut amounts, mut wrong) = (Amounts::new(), Vec::new());
    for (resource, text) in of {
        match text.trim().parse::<Quantity>() {
            _ if !RESERVABLE.contains(&resource.as_str()) => {
                wrong.push(format!("{setting} {resource}: only {} can be reserved", RESERVABLE.join(", ")));
            }
            Ok(amount) if !amount.is_negative() => drop(amounts.insert(resource.clone(), amount)),
            Ok(_) => wrong.push(format!("{setting} {resource}: {text:?} is below zero")),
            Err(error) => wrong.push(format!("{setting} {resource}: {error}")),
        }
    }
    if wrong.is_empty() { Ok(amounts) } else { Err(wrong) }
}

/// The capacity of the machine.
pub(super) fn capacity(machine: &Machine, max_pods: u32) -> Amounts {
    let mut all = Amounts::from([
        ("cpu".to_owned(), Quantity::from_units(machine.cpus)),
        ("memory".to_owned(), Quantity::from_bytes(machine.memory_bytes)),
        ("ephemeral-storage".to_owned(), Quantity::from_bytes(machine.disk_bytes)),
        ("pods".to_owned(), Quantity::from_units(i64::from(max_pods))),
    ]);
    all.extend(machine.huge_pages.iter().map(|(size, bytes)| (size.clone(), Quantity::from_bytes(*bytes))));
    all
}

/// Allocatable resources: capacity without reservations, hard eviction thresholds, and memory in huge pages.
pub(super) fn allocatable(capacity: &Amounts, reserved: &[Amounts], thresholds: &[Threshold]) -> Amounts {
    let huge: i64 = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-")).map(|(_, q)| q.units()).sum();
    let mut all = without(capacity, reserved);
    for (resource, signal, more) in [("memory", Signal::Memory, huge), ("ephemeral-storage", Signal::NodeFs, 0)] {
        if let Some(left) = all.get_mut(resource) {
            let reserved_amount =
                hard_eviction_reservation(thresholds, signal, capacity.get(resource).map_or(0, |q| q.units()));
            *left = floor(left.minus(Quantity::from_bytes(reserved_amount.saturating_add(more))));
        }
    }
    all
}

/// Capacity without reservations: the enforced limit of all pods together.
pub(super) fn without(capacity: &Amounts, reserved: &[Amounts]) -> Amounts {
    let left = |(name, amount): (&String, &Quantity)| {
        let reserved_amount = reserved.iter().filter_map(|r| r.get(name));
        (name.clone(), floor(reserved_amount.fold(*amount, |left, reserved_amount| left.minus(*reserved_amount))))
    };
    capacity.iter().map(left).collect()
}

fn floor(amount: Quantity) -> Quantity {
    if amount.is_negative() { amount.minus(amount) } else { amount }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::eviction::thresholds::{default_hard, parse};

    fn amounts(all: &[(&str, &str)]) -> Amounts {
        all.iter().map(|(name, value)| ((*name).to_owned(), value.parse().unwrap())).collect()
    }

    #[test]
    fn allocatable_resources() {
        let none = ThresholdMap::new();
        let thresholds = parse(&default_hard(), &none, &none, &none).unwrap();
        let machine = Machine {
            cpus: 4,
            memory_bytes: 8 << 30,
            disk_bytes: 100 << 30,
            huge_pages: [("hugepages-2Mi".to_owned(), 1 << 30)].into(),
            ..Machine::default()
        };
        let all = capacity(&machine, 110);
        let reserved = [
            amounts(&[("cpu", "500m"), ("memory", "1Gi")]),
            amounts(&[("cpu", "100m"), ("ephemeral-storage", "10Gi")]),
        ];
        let left: Vec<(String, String)> =
            allocatable(&all, &reserved, &thresholds).into_iter().map(|(k, v)| (k, v.to_string())).collect();
        let wanted = [
            ("cpu", "3400m"),
            ("ephemeral-storage", "80Gi"),
            ("hugepages-2Mi", "1Gi"),
            ("memory", "6044Mi"),
            ("pods", "110"),
        ];
        assert_eq!(left, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(without(&all, &reserved)["memory"].to_string(), "7Gi");
        let much = [amounts(&[("memory", "1Ti")])];
        assert_eq!(allocatable(&all, &much, &thresholds)["memory"].to_string(), "0", "never below nothing");
    }

    #[test]
    fn invalid_reservations() {
        let setting = |name: &str, value: &str| ThresholdMap::from([(name.to_owned(), value.to_owned())]);
        for (name, value, words) in [
            ("gpu", "1", "kubeReserved gpu: only cpu, memory"),
            ("memory", "lots", "kubeReserved memory: \"lots\""),
            ("cpu", "-1", "below zero"),
        ] {
            let wrong = parse_reserved("kubeReserved", &setting(name, value)).unwrap_err().join("; ");
            assert!(wrong.contains(words), "{words}: {wrong}");
        }
        assert_eq!(parse_reserved("kubeReserved", &setting("pid", "1000")).unwrap()["pid"].units(), 1000);
    }
}
