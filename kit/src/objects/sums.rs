//! What the containers of a pod ask for together, of each resource that they name (upstream:
//! `AggregateContainerRequests`, `AggregateContainerLimits`). Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;

/// Amounts by the names of resources.
pub type Sums = BTreeMap<String, Quantity>;

/// The amounts of a container; `list` is `requests` or `limits`. What cannot be read counts as nothing.
fn amounts_of(container: &Value, list: &str) -> Sums {
    let amounts = container["resources"][list].as_object().into_iter().flatten();
    amounts.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?))).collect()
}

fn add(all: &mut Sums, more: &Sums) {
    for (name, amount) in more {
        all.entry(name.clone()).and_modify(|sum| *sum = sum.plus(*amount)).or_insert(*amount);
    }
}

fn at_least(all: &mut Sums, others: &Sums) {
    for (name, amount) in others {
        let most = all.entry(name.clone()).or_insert(*amount);
        if *amount > *most {
            *most = *amount;
        }
    }
}

/// The `requests` or `limits` of the containers of a spec: those that run together, or the most demanding init container
/// with the sidecars before it.
#[must_use]
pub fn of_containers(spec: &Value, list: &str) -> Sums {
    let containers = |key: &str| spec[key].as_array().into_iter().flatten();
    let mut running = Sums::new();
    containers("containers").for_each(|container| add(&mut running, &amounts_of(container, list)));
    let (mut sidecars, mut peak) = (Sums::new(), Sums::new());
    for init in containers("initContainers") {
        let own = amounts_of(init, list);
        if init["restartPolicy"] == "Always" {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            at_least(&mut peak, &sidecars);
        } else {
            let mut with = own;
            add(&mut with, &sidecars);
            at_least(&mut peak, &with);
        }
    }
    at_least(&mut running, &peak);
    running
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_and_sidecars_run_together() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = container("100m");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({"containers": [container("100m"), {}], "initContainers": [sidecar, container("500m")]});
        let sums = of_containers(&spec, "requests");
        assert_eq!(sums["cpu"].to_string(), "600m");
        assert!(of_containers(&spec, "limits").is_empty());
    }
}
