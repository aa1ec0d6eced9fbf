//! ServiceCIDR.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    kinds::{
        shared::{
            cells::{joined, text},
            field::{Field, IMMUTABLE},
            tables::{AGE, column, named},
        },
        types,
    },
    store::Allocator,
};

/// The resource; `allocator` hears of each of its writes.
pub(crate) fn definition(allocator: Arc<dyn Allocator>) -> Definition {
    let mut resource = Resource::new("networking.k8s.io", "servicecidrs", "ServiceCIDR", ServiceCidr { allocator });
    resource.namespaced = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("networking.k8s.io/v1", "ServiceCIDR"));
    v1.subresources = vec![Subresource::status()];
    v1.table = named(vec![column("CIDRs", "Ranges of addresses."), AGE], |object, age| {
        let ranges = object["spec"]["cidrs"].as_array().into_iter().flatten();
        vec![json!(joined(ranges.map(|range| text(range).to_owned()))), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct ServiceCidr {
    allocator: Arc<dyn Allocator>,
}

impl Strategy for ServiceCidr {
    fn allocator(&self) -> Option<Arc<dyn Allocator>> {
        Some(Arc::clone(&self.allocator))
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        validate_ranges(&Field::root(object).below("spec.cidrs"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let (now, before) = (Field::root(new).below("spec.cidrs"), Field::root(old).below("spec.cidrs"));
        let changed = |at: usize| now.value[at] != before.value[at];
        match (before.len(), now.len()) {
            (were, are) if were == are => {
                for range in (0..are).filter(|at| changed(*at)).filter_map(|at| now.items().nth(at)) {
                    range.invalid(IMMUTABLE, errors);
                }
            }
            // A second family may be added.
            (1, 2) => {
                if changed(0) {
                    errors.invalid("spec.cidrs[0]", &now.value[0], IMMUTABLE);
                }
                validate_ranges(&now, errors);
            }
            _ => now.invalid(IMMUTABLE, errors),
        }
    }
}

fn validate_ranges(ranges: &Field<'_>, errors: &mut Errors) {
    match ranges.len() {
        0 => return ranges.required("at least one CIDR required", errors),
        1 | 2 => {}
        // Upstream writes its internal type.
        _ => {
            let shown = format!("{{\"CIDRs\":{}}}", ranges.value);
            return ranges.invalid_as(&shown, "may only hold up to 2 values", errors);
        }
    }
    let mut families = Vec::new();
    for range in ranges.items() {
        range.fits(names::cidr, errors);
        let Some((address, length)) = names::parse_cidr(range.text()) else { continue };
        families.push(address.is_ipv4());
        let canonical = format!("{}/{length}", names::masked(address, length));
        if names::cidr(range.text()).is_none() && canonical != range.text() {
            range.invalid(&format!("must be in canonical form ({canonical:?})"), errors);
        }
    }
    if matches!(families[..], [one, other] if one == other) {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        ranges.invalid(why, errors);
    }
}
