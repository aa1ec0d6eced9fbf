//! PriorityLevelConfiguration. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set, unless_zero};

use super::conditions;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    kinds::{
        shared::{
            cells::text,
            field::Field,
            tables::{AGE, column, named},
        },
        types,
    },
};

const EXEMPT: &str = "exempt";
const ZERO_SHARES: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
const MAX_QUEUES: i64 = 10_000_000;
const MAX_ENTROPY_BITS: u32 = 60;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new(
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
        "PriorityLevelConfiguration",
        PriorityLevelConfiguration,
    );
    resource.namespaced = false;
    resource.generation = Generation::Counted;
    let mut v1 =
        VersionSpec::new("v1", types::built_in("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("Type", "Whether its requests are limited."),
        column("NominalConcurrencyShares", "Its share of the requests in flight."),
        column("Queues", "Its queues."),
        column("HandSize", "The queues that one flow may use."),
        column("QueueLengthLimit", "Requests that wait in one queue."),
        AGE,
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let spec = &object["spec"];
    let shown = |value: &Value| if value.is_null() { json!("<none>") } else { value.clone() };
    let shares = match spec["limited"].is_object() {
        true => &spec["limited"]["nominalConcurrencyShares"],
        false => &spec["exempt"]["nominalConcurrencyShares"],
    };
    let queuing = &spec["limited"]["limitResponse"]["queuing"];
    vec![
        json!(text(&spec["type"])),
        shown(shares),
        shown(&queuing["queues"]),
        shown(&queuing["handSize"]),
        shown(&queuing["queueLengthLimit"]),
        json!(age),
    ]
}

#[derive(Debug)]
struct PriorityLevelConfiguration;

impl Strategy for PriorityLevelConfiguration {
    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        if let Some(exempt) = spec.get_mut("exempt").and_then(Value::as_object_mut) {
            set(exempt, "nominalConcurrencyShares", json!(0));
            set(exempt, "lendablePercent", json!(0));
        }
        let Some(limited) = spec.get_mut("limited").and_then(Value::as_object_mut) else { return };
        set(limited, "nominalConcurrencyShares", json!(30));
        set(limited, "lendablePercent", json!(0));
        let queuing = limited.get_mut("limitResponse").and_then(|response| response.get_mut("queuing"));
        if let Some(queuing) = queuing.and_then(Value::as_object_mut) {
            for (field, value) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                unless_zero(queuing, field, json!(value));
            }
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        if object["metadata"]["annotations"].get(ZERO_SHARES).is_some() {
            errors.forbidden("metadata.annotations", &format!("annotation '{ZERO_SHARES}' is forbidden"));
        }
        let (spec, name) = (root.at("spec"), root.below("metadata.name"));
        let kind = spec.at("type");
        if (name.text() == EXEMPT) != (kind.text() == "Exempt") {
            kind.invalid("must be 'Exempt' if and only if `name` is 'exempt'", errors);
        }
        let (exempt, limited) = (spec.at("exempt"), spec.at("limited"));
        match kind.text() {
            "Exempt" => {
                if limited.is_set() {
                    limited.forbidden("must be nil if the type is not Limited", errors);
                }
                if exempt.is_set() {
                    not_negative(&exempt.at("nominalConcurrencyShares"), errors);
                    percent(&exempt.at("lendablePercent"), errors);
                }
            }
            "Limited" => {
                if exempt.is_set() {
                    exempt.forbidden("must be nil if the type is Limited", errors);
                }
                if limited.is_set() {
                    validate_limited(&limited, errors);
                } else {
                    limited.required("must not be empty when type is Limited", errors);
                }
            }
            _ => kind.one_of(&["Exempt", "Limited"], errors),
        }
        let free = (name.text() == EXEMPT).then_some("exempt");
        super::validate_fixed(object, "PriorityLevelConfiguration", free, errors);
        conditions::validate(object, errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        conditions::validate(new, errors);
    }
}

fn not_negative(field: &Field<'_>, errors: &mut Errors) {
    if field.number().is_some_and(|n| n < 0) {
        field.invalid("must be a non-negative integer", errors);
    }
}

fn percent(field: &Field<'_>, errors: &mut Errors) {
    if field.number().is_some_and(|n| !(0..=100).contains(&n)) {
        field.invalid("must be between 0 and 100, inclusive", errors);
    }
}

fn validate_limited(limited: &Field<'_>, errors: &mut Errors) {
    not_negative(&limited.at("nominalConcurrencyShares"), errors);
    let response = limited.at("limitResponse");
    let queuing = response.at("queuing");
    match response.at("type").text() {
        "Reject" if queuing.is_set() => {
            queuing.forbidden("must be nil if limited.limitResponse.type is not Limited", errors);
        }
        "Reject" => {}
        "Queue" if !queuing.is_set() => {
            queuing.required("must not be empty if limited.limitResponse.type is Limited", errors);
        }
        "Queue" => validate_queuing(&queuing, errors),
        _ => response.at("type").one_of(&["Queue", "Reject"], errors),
    }
    percent(&limited.at("lendablePercent"), errors);
    let borrowing = limited.at("borrowingLimitPercent");
    if borrowing.number().is_some_and(|n| n < 0) {
        borrowing.invalid("if specified, must be a non-negative integer", errors);
    }
}

fn validate_queuing(queuing: &Field<'_>, errors: &mut Errors) {
    let (queues, hand) = (queuing.at("queues"), queuing.at("handSize"));
    let positive = |field: &Field<'_>, errors: &mut Errors| {
        let good = field.number().unwrap_or(0) > 0;
        if !good {
            field.invalid("must be positive", errors);
        }
        good
    };
    positive(&queuing.at("queueLengthLimit"), errors);
    let (deck, size) = (queues.number().unwrap_or(0), hand.number().unwrap_or(0));
    if positive(&queues, errors) && deck > MAX_QUEUES {
        queues.invalid(&format!("must not be greater than {MAX_QUEUES}"), errors);
    }
    if !positive(&hand, errors) {
        return;
    }
    if size > deck {
        hand.invalid(&format!("should not be greater than queues ({deck})"), errors);
    } else if entropy_bits(deck, size) > MAX_ENTROPY_BITS {
        let why = format!(
            "required entropy bits of deckSize {deck} and handSize {size} should not be greater than {MAX_ENTROPY_BITS}"
        );
        hand.invalid(&why, errors);
    }
}

/// How many bits it takes to number every hand that can be dealt.
fn entropy_bits(deck: i64, hand: i64) -> u32 {
    let mut hands = 1.0_f64;
    for dealt in 0..hand.min(128) {
        hands *= (deck - dealt) as f64;
    }
    hands.log2().ceil().clamp(0.0, 10_000.0) as u32
}
